"""Copies between slots that a step asks for before its rows: in `Step.extra`, forwarded by every stage."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from engine.contract.errors import ErrorCode, StepError

_FIELD: Final = "copy"


class SlotCopy(NamedTuple):
    """The first `tokens` of what slot `source` holds, into slot `target`."""

    source: int
    target: int
    tokens: int


def with_copies(copies: Sequence[SlotCopy]) -> dict[str, Any]:
    """What goes into `Step.extra`; nothing when there are none."""
    return {_FIELD: [list(copy) for copy in copies]} if copies else {}


def copies_of(extra: Mapping[str, Any]) -> tuple[SlotCopy, ...]:
    """The copies of a step, in order. Raises StepError(INVALID_ROWS) for anything but triples of whole numbers."""
    found: Any = extra.get(_FIELD, [])
    if not isinstance(found, list):
        raise _malformed(found)  # type: ignore[reportUnknownArgumentType]
    return tuple(_copy(item) for item in found)  # type: ignore[reportUnknownVariableType]


def _copy(item: Any) -> SlotCopy:
    if not isinstance(item, list) or [type(number) for number in item] != [int, int, int]:  # type: ignore[reportUnknownVariableType]
        raise _malformed(item)
    return SlotCopy(*item)  # type: ignore[reportUnknownArgumentType]


def _malformed(found: Any) -> StepError:
    return StepError(ErrorCode.INVALID_ROWS, f"a copy between slots is [source, target, tokens], not {found!r:.80}")
