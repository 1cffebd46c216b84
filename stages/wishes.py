"""What the decoder sent straight to the last stage: read and checked before anything is computed with it (D4)."""

from collections.abc import Sequence

import numpy as np

from engine.contract.errors import ErrorCode, FrameError, StepError
from engine.contract.ids import Incarnation
from engine.contract.messages import Step, StepSide
from engine.contract.side import RowSide
from engine.wire.frame import decode


def read_sides(step: Step, sides: Sequence[bytes], incarnation: Incarnation) -> tuple[RowSide, ...]:
    """How the tokens of a step's rows are to be chosen. Raises StepError when that is incomplete or not for us."""
    if len(sides) != step.sides:
        raise StepError(ErrorCode.SIDE_MISSING, f"{len(sides)} of {step.sides} step sides have come")
    found: list[RowSide] = []
    for data in sides:
        try:
            side = decode(data)
        except FrameError as error:
            raise StepError(ErrorCode.INVALID_ROWS, str(error)) from error
        if not isinstance(side, StepSide) or side.incarnation != incarnation:
            raise StepError(ErrorCode.FOREIGN_INCARNATION, "a step side that is not for this worker")
        found += side.rows
    counts = step.rows.picked_counts
    for row in found:
        if not 0 <= row.row < len(counts):
            raise StepError(ErrorCode.INVALID_ROWS, f"a side for row {row.row}, the step has {len(counts)}")
        if row.masks is not None and len(row.masks) != counts[row.row]:
            raise StepError(ErrorCode.INVALID_ROWS, f"{len(row.masks)} masks for {counts[row.row]} positions")
    return tuple(found)


def check_wishes(rows: Sequence[RowSide], vocabulary: int) -> None:
    """Raises StepError(INVALID_ROWS) when a row names tokens that the head does not have."""
    for row in rows:
        named = np.array([*row.drafts, *row.read, *row.said, *row.how.logit_bias], np.int64)
        if len(named) and (named.min() < 0 or named.max() >= vocabulary):
            raise StepError(ErrorCode.INVALID_ROWS, f"row {row.row} names a token that is not in the vocabulary")
        if row.masks is not None and 32 * row.masks.shape[1] < vocabulary:
            raise StepError(ErrorCode.INVALID_ROWS, f"masks of {32 * row.masks.shape[1]} tokens, not {vocabulary}")
        if len(row.said) != len(row.times):
            raise StepError(ErrorCode.INVALID_ROWS, f"row {row.row}: {len(row.said)} tokens, {len(row.times)} counts")
