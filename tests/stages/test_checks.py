from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine.contract.copies import SlotCopy
from engine.contract.errors import ErrorCode, StepError
from engine.contract.messages import Rows
from stages.checks import RowChecks, ShardShape, check_copies
from stages.runner import Capabilities
from tests.stages.fakes import rows

CAN = Capabilities(
    kind="paged", blocks=16, block_size=8, slots=4, min_row_tokens=1, max_step_tokens=0, context_length=40
)
TAKES_IDS = ShardShape(first=True, last=False, hidden_size=4, vocabulary=50)
TAKES_HIDDEN = replace(TAKES_IDS, first=False)
GOOD = rows((0, 3, 2, 1), (9, 2, 0, 2))


def ids(count: int) -> npt.NDArray[np.int32]:
    return np.arange(count, dtype=np.int32)


def changed(row: int, column: int, value: int) -> Rows:
    table = GOOD.table.copy()
    table[row, column] = value
    return Rows(table, GOOD.blocks)


def test_good_rows_pass() -> None:
    RowChecks(CAN, TAKES_IDS).check(GOOD, ids(5))
    RowChecks(CAN, TAKES_HIDDEN).check(GOOD, np.zeros((5, 4), np.float32))


def test_a_row_may_pick_nothing() -> None:
    RowChecks(CAN, TAKES_IDS).check(rows((0, 3, 0, 0)), ids(3))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (rows(), "without rows"),
        (changed(1, 1, 0), "row 1 has no tokens"),
        (changed(1, 1, -3), "row 1 has no tokens"),
        (changed(0, 0, -1), "row 0 starts before"),
        (changed(1, 0, 39), "row 1 ends beyond the context"),
        (changed(1, 0, 2**31 - 1), "row 1 ends beyond the context"),
        (changed(1, 2, 4), "row 1 names a slot"),
        (changed(0, 2, -1), "row 0 names a slot"),
        (changed(0, 3, 3), "row 0 picks positions outside"),
        (changed(0, 3, -1), "row 0 picks positions outside"),
        (changed(0, 4, -1), "row 0 picks positions outside"),
        (changed(0, 4, 2**31 - 1), "row 0 picks positions outside"),
        (changed(1, 5, 1), "row 1 has too few blocks"),
        (changed(1, 5, -1), "row 1 has too few blocks"),
        (changed(1, 5, 3), "3 block ids, the rows name 4"),
        (Rows(GOOD.table, GOOD.blocks[:-1]), "2 block ids, the rows name 3"),
        (Rows(GOOD.table, np.array([0, 1, 16], np.int32)), "block 16, the pool has 16"),
        (Rows(GOOD.table, np.array([0, -1, 2], np.int32)), "block -1"),
    ],
)
def test_bad_rows_are_refused_by_name(bad: Rows, says: str) -> None:
    with pytest.raises(StepError, match=says) as caught:
        RowChecks(CAN, TAKES_IDS).check(bad, ids(5))
    assert caught.value.code == ErrorCode.INVALID_ROWS


@pytest.mark.parametrize(
    ("value", "shape", "says"),
    [
        (ids(4), TAKES_IDS, "need int32"),
        (ids(5).astype(np.float32), TAKES_IDS, "need int32"),
        (np.array([0, 1, 2, 3, 50], np.int32), TAKES_IDS, "token 50, the vocabulary has 50"),
        (np.array([0, 1, 2, 3, -1], np.int32), TAKES_IDS, "token -1"),
        (ids(5), TAKES_HIDDEN, "need float32"),
        (np.zeros((5, 3), np.float32), TAKES_HIDDEN, "need float32"),
        (np.zeros((4, 4), np.float32), TAKES_HIDDEN, "need float32"),
    ],
)
def test_bad_values_are_refused_by_name(value: npt.NDArray[Any], shape: ShardShape, says: str) -> None:
    with pytest.raises(StepError, match=says) as caught:
        RowChecks(CAN, shape).check(GOOD, value)
    assert caught.value.code == ErrorCode.INVALID_ROWS


@pytest.mark.parametrize(
    ("copies", "says"),
    [
        ([SlotCopy(0, 4, 5)], "two slots"),
        ([SlotCopy(-1, 1, 5)], "two slots"),
        ([SlotCopy(0, 0, 5)], "two slots"),
        ([SlotCopy(0, 1, 0)], "wants 0 tokens of 9"),
        ([SlotCopy(0, 1, 10)], "wants 10 tokens of 9"),
        ([SlotCopy(2, 1, 1)], "wants 1 tokens of 0"),
        ([SlotCopy(0, 1, 5), SlotCopy(1, 2, 6)], "wants 6 tokens of 5"),
    ],
)
def test_copies_from_nowhere_to_nowhere_or_of_too_much_are_refused(copies: list[SlotCopy], says: str) -> None:
    with pytest.raises(StepError, match=says) as raised:
        check_copies(copies, {0: 9}, slots=4)
    assert raised.value.code == ErrorCode.INVALID_ROWS


def test_a_copy_may_go_on_from_another() -> None:
    check_copies([SlotCopy(0, 1, 5), SlotCopy(1, 2, 5), SlotCopy(0, 1, 9)], {0: 9}, slots=4)
