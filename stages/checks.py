"""Are these rows safe to hand to native code? Vectorised, and before anything is computed (D4)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.contract.errors import ErrorCode, StepError
from engine.contract.messages import Rows
from stages.runner import Capabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardShape:
    """What goes into a shard and comes out of it."""

    first: bool  # takes token ids
    last: bool  # returns logits
    hidden_size: int
    vocabulary: int


def check_rows(rows: Rows, value: npt.NDArray[Any], can: Capabilities, shape: ShardShape) -> None:
    """Raises StepError(INVALID_ROWS) that names the first bad row and what is wrong with it."""
    if not rows.count:
        raise StepError(ErrorCode.INVALID_ROWS, "a step without rows")
    starts, lengths, slots, picked, counts, blocks = rows.table.T.astype(np.int64)  # sums must not wrap around
    ends = starts + lengths
    _require(lengths >= 1, "has no tokens", lengths)
    _require(starts >= 0, "starts before the sequence", starts)
    _require(ends <= can.context_length, f"ends beyond the context of {can.context_length} tokens", ends)
    _require((picked >= 0) & (counts >= 0) & (picked + counts <= lengths), "picks positions outside itself", picked)
    if can.slots:
        _require((slots >= 0) & (slots < can.slots), f"names a slot outside [0, {can.slots})", slots)
    if can.block_size:
        _require((blocks >= 0) & (blocks * can.block_size >= ends), "has too few blocks for its tokens", blocks)
        _check_blocks(rows.blocks, int(blocks.sum()), can.blocks)
    _check_value(value, int(lengths.sum()), shape)


def _check_blocks(ids: npt.NDArray[np.int32], named: int, blocks: int) -> None:
    if len(ids) != named:
        raise StepError(ErrorCode.INVALID_ROWS, f"{len(ids)} block ids, the rows name {named}")
    if ids.min() < 0 or ids.max() >= blocks:
        wrong = ids[(ids < 0) | (ids >= blocks)][0]
        raise StepError(ErrorCode.INVALID_ROWS, f"block {wrong}, the pool has {blocks}")


def _check_value(value: npt.NDArray[Any], tokens: int, shape: ShardShape) -> None:
    wanted = (tokens,) if shape.first else (tokens, shape.hidden_size)
    dtype = np.int32 if shape.first else np.float32
    if value.shape != wanted or value.dtype != dtype:
        raise StepError(
            ErrorCode.INVALID_ROWS,
            f"{value.dtype} {value.shape} came with rows that need {np.dtype(dtype)} {wanted}",
        )
    if shape.first and (value.min() < 0 or value.max() >= shape.vocabulary):
        wrong = value[(value < 0) | (value >= shape.vocabulary)][0]
        raise StepError(ErrorCode.INVALID_ROWS, f"token {wrong}, the vocabulary has {shape.vocabulary}")


def _require(good: npt.NDArray[np.bool_], what: str, numbers: npt.NDArray[np.int64]) -> None:
    if not good.all():
        row = int(good.argmin())
        raise StepError(ErrorCode.INVALID_ROWS, f"row {row} {what} ({numbers[row]})")
