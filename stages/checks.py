"""Are these rows safe to hand to native code? Vectorised, and before anything is computed (D4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.contract.copies import SlotCopy
from engine.contract.errors import ErrorCode, StepError
from engine.contract.messages import ROW_COLUMNS, IntArray, Rows
from stages.runner import Capabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardShape:
    """What goes into a shard and comes out of it."""

    first: bool  # takes token ids
    last: bool  # returns logits
    hidden_size: int
    vocabulary: int


class RowChecks:
    """The rules of one runner. Every rule about a row is linear in its columns, so all are one small product."""

    def __init__(self, can: Capabilities, shape: ShardShape) -> None:
        self._can, self._shape = can, shape
        start, length, slot, picked, count, blocks = np.eye(ROW_COLUMNS, dtype=np.int64)
        end = start + length
        rules = [  # what holds when the product, plus the number, is not negative
            ("has no tokens", length, -1),
            ("starts before the sequence", start, 0),
            (f"ends beyond the context of {can.context_length} tokens", -end, can.context_length),
            ("picks positions outside itself", picked, 0),
            ("picks positions outside itself", count, 0),
            ("picks positions outside itself", length - picked - count, 0),
        ]
        if can.slots:
            outside = f"names a slot outside [0, {can.slots})"
            rules += [(outside, slot, 0), (outside, -slot, can.slots - 1)]
        if can.block_size:
            rules.append(("has too few blocks for its tokens", can.block_size * blocks - end, 0))
        self._names = [name for name, _, _ in rules]
        self._products = np.stack([product for _, product, _ in rules])
        self._numbers = np.array([[number] for _, _, number in rules], np.int64)

    def check(self, rows: Rows, value: npt.NDArray[Any]) -> None:
        """Raises StepError(INVALID_ROWS) that names a bad row and what is wrong with it."""
        if not rows.count:
            raise StepError(ErrorCode.INVALID_ROWS, "a step without rows")
        columns = rows.table.T.astype(np.int64)  # sums of 32 bits would wrap around
        margins = self._products @ columns + self._numbers
        if np.minimum.reduce(margins, axis=None) < 0:
            rule, row = np.argwhere(margins < 0)[0].tolist()
            line = dict(zip(_COLUMNS, columns[:, row].tolist(), strict=True))
            raise StepError(ErrorCode.INVALID_ROWS, f"row {row} {self._names[rule]}: {line}")
        if self._can.block_size:
            self._check_blocks(rows.blocks, int(np.add.reduce(columns[5])))
        self._check_value(value, int(np.add.reduce(columns[1])))

    def _check_blocks(self, ids: IntArray, named: int) -> None:
        if len(ids) != named:
            raise StepError(ErrorCode.INVALID_ROWS, f"{len(ids)} block ids, the rows name {named}")
        if (wrong := _outside(ids, self._can.blocks)) is not None:
            raise StepError(ErrorCode.INVALID_ROWS, f"block {wrong}, the pool has {self._can.blocks}")

    def _check_value(self, value: npt.NDArray[Any], tokens: int) -> None:
        shape = self._shape
        wanted = (tokens,) if shape.first else (tokens, shape.hidden_size)
        dtype = np.int32 if shape.first else np.float32
        if value.shape != wanted or value.dtype != dtype:
            raise StepError(
                ErrorCode.INVALID_ROWS,
                f"{value.dtype} {value.shape} came with rows that need {np.dtype(dtype)} {wanted}",
            )
        if shape.first and (wrong := _outside(value, shape.vocabulary)) is not None:
            raise StepError(ErrorCode.INVALID_ROWS, f"token {wrong}, the vocabulary has {shape.vocabulary}")


def check_copies(copies: Sequence[SlotCopy], held: Mapping[int, int], slots: int) -> None:
    """All copies, before any is made. `held`: tokens in each slot that has any. Raises StepError(INVALID_ROWS)."""
    lengths = dict(held)
    for copy in copies:
        source, target, tokens = copy
        if not (0 <= source < slots and 0 <= target < slots) or source == target:
            reason = f"must name two slots in [0, {slots})"
        elif not 0 < tokens <= lengths.get(source, 0):
            reason = f"wants {tokens} tokens of {lengths.get(source, 0)}"
        else:
            lengths[target] = tokens
            continue
        raise StepError(ErrorCode.INVALID_ROWS, f"a copy from slot {source} to slot {target} {reason}")


_COLUMNS = ("start", "length", "slot", "picked from", "picked", "blocks")


def _outside(ids: IntArray, limit: int) -> int | None:
    """The first id outside [0, limit); a negative one is huge when read as unsigned."""
    if np.maximum.reduce(ids.view(np.uint32)) < limit:
        return None
    return int(ids[(ids < 0) | (ids >= limit)][0])
