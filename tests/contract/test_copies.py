from typing import Any

import pytest

from engine.contract.copies import SlotCopy, copies_of, with_copies
from engine.contract.errors import ErrorCode, StepError


def test_copies_come_back_as_they_went() -> None:
    copies = (SlotCopy(0, 3, 40), SlotCopy(3, 1, 32))
    assert copies_of(with_copies(copies)) == copies


def test_a_step_without_copies_carries_nothing() -> None:
    assert with_copies(()) == {}
    assert copies_of({"other": 1}) == ()


@pytest.mark.parametrize("found", [7, {}, [7], [[1, 2]], [[1, 2, 3, 4]], [[1, 2, "3"]], [[1, 2, 3.0]], [[1, 2, True]]])
def test_anything_else_is_refused(found: Any) -> None:
    with pytest.raises(StepError, match="source, target, tokens") as raised:
        copies_of({"copy": found})
    assert raised.value.code == ErrorCode.INVALID_ROWS
