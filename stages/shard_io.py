"""Checks of a step's rows before native code sees them: a bad block id there is a crash, here an answer."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.contract.errors import ErrorCode, StepError
from engine.contract.messages import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """What a runner can take."""

    context_length: int
    blocks: int  # 0: no blocks
    block_size: int
    slots: int  # 0: any slot
    hidden_size: int  # 0: token ids come in
    vocabulary: int


def check_rows(rows: Rows, value: npt.NDArray[Any], limits: RowLimits) -> None:
    """Raise StepError naming the first thing that is wrong."""
    starts, lengths = rows.starts, rows.lengths
    _demand(rows.count > 0, "a step without rows")
    _demand(bool((lengths >= 1).all() and (starts >= 0).all()), "a row with a negative start or without tokens")
    ends = starts.astype(np.int64) + lengths
    _demand(bool((ends <= limits.context_length).all()), f"a row beyond the context of {limits.context_length} tokens")
    begins, counts = rows.picked_starts, rows.picked_counts
    picked_inside = (begins >= 0) & (counts >= 0) & (begins.astype(np.int64) + counts <= lengths)
    _demand(bool(picked_inside.all()), "positions picked outside their row")
    _check_value(rows, value, limits)
    if limits.blocks:
        _check_blocks(rows, ends, limits)
    if limits.slots:
        inside = (rows.slots >= 0) & (rows.slots < limits.slots)
        _demand(bool(inside.all()), f"a slot outside 0 to {limits.slots - 1}")
        _demand(len(np.unique(rows.slots)) == rows.count, "two rows of one slot in one step")


def _check_value(rows: Rows, value: npt.NDArray[Any], limits: RowLimits) -> None:
    expected = (rows.tokens, limits.hidden_size) if limits.hidden_size else (rows.tokens,)
    dtype = np.float32 if limits.hidden_size else np.int32
    _demand(
        value.shape == expected and value.dtype == dtype,
        f"a tensor {value.dtype}{list(value.shape)} where {np.dtype(dtype)}{list(expected)} was due",
    )
    if not limits.hidden_size:
        _demand(bool(((value >= 0) & (value < limits.vocabulary)).all()), "a token id outside the vocabulary")


def _check_blocks(rows: Rows, ends: npt.NDArray[np.int64], limits: RowLimits) -> None:
    counts = rows.block_counts
    _demand(bool((counts * np.int64(limits.block_size) >= ends).all()), "a row that its blocks do not cover")
    _demand(int(counts.sum()) == len(rows.blocks), "block counts that do not add up")
    inside = (rows.blocks >= 0) & (rows.blocks < limits.blocks)
    _demand(bool(inside.all()), f"a block outside the pool of {limits.blocks}")


def _demand(condition: bool, otherwise: str) -> None:
    if not condition:
        raise StepError(ErrorCode.INVALID_ROWS, otherwise)
