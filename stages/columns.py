"""Which column of a static shard's KV cache holds which token, and which columns a token sees. Numbers only.

Every slot has `cells` columns of its own, in a row. A sequence that may slide uses them as a ring behind its first
`sinks` tokens, which stay. What a token sees depends on its position and nothing else, neither on drafts that were
rejected before it nor on how rows were cut: the sinks and the last tokens up to itself, `context` in all. The ring has
room for REWIND more, so that rejected tokens push nothing out of sight.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from engine.contract.copies import SlotCopy
from engine.contract.errors import ErrorCode, StepError
from engine.contract.messages import Rows
from engine.contract.static import REWIND, StaticLimits
from stages.checks import check_copies
from stages.slot import check_start

Indices = npt.NDArray[np.int64]
Opened = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Held:
    """What a slot has."""

    length: int = 0  # tokens that count
    top: int = 0  # tokens ever written since it was empty: those behind `length` were rejected


class Columns:
    """The bookkeeping of all slots of one shard."""

    def __init__(self, limits: StaticLimits) -> None:
        self._limits = limits
        self._ring = limits.cells - limits.sinks
        self._cell = np.arange(limits.cells)
        self._held = [Held() for _ in range(limits.slots)]

    def reset(self) -> None:
        """Empty every slot."""
        self._held = [Held() for _ in range(self._limits.slots)]

    def check_rows(self, rows: Rows) -> None:
        """Each row follows, or takes back, what its slot holds then. Raises StepError; nothing is changed."""
        held = [replace(one) for one in self._held]
        table: list[list[int]] = rows.table[:, :3].tolist()
        for i, (start, length, slot) in enumerate(table):
            check_start(start, held[slot].length, row=i)
            self._check_kept(held[slot], start, f"row {i} of slot {slot} starts at {start}")
            _write(held[slot], start, length)

    def check_copies(self, copies: Sequence[SlotCopy]) -> None:
        """Each copy finds its tokens. Raises StepError; nothing is changed."""
        check_copies(copies, {slot: held.length for slot, held in enumerate(self._held)}, self._limits.slots)
        held = [replace(one) for one in self._held]
        for source, target, tokens in copies:
            self._check_kept(held[source], tokens, f"slot {target} wants the first {tokens} tokens of slot {source}")
            held[target] = self._copied(held[source], tokens)

    def _check_kept(self, held: Held, start: int, what: str) -> None:
        if start and held.top > self._limits.cells and held.top - start > REWIND:
            raise StepError(
                ErrorCode.INVALID_ROWS,
                f"{what}, but it has slid on to {held.top}: only its last {REWIND} tokens may be taken back",
            )

    def seen(self, start: int, length: int) -> tuple[Opened, Opened]:
        """What the tokens [start, start + length) see of their slot's cells, (length, cells), and of each other."""
        query = np.arange(start, start + length)[:, None]
        return self._sees(query, self._positions(start)), self._sees(query, query.T)

    def _sees(self, query: Indices, key: Indices) -> Opened:
        """`key`: positions, -1 for none."""
        opened = (key >= 0) & (key <= query)
        if self._limits.sinks:
            opened &= (key < self._limits.sinks) | (key > query - (self._limits.context - self._limits.sinks))
        return opened

    def _positions(self, start: int) -> Indices:
        """The position that each cell holds of a sequence whose first `start` tokens are there; -1 for none."""
        if start <= self._limits.cells:
            return np.where(self._cell < start, self._cell, -1)
        turns = (start - 1 - self._cell) // self._ring
        return np.where(self._cell < self._limits.sinks, self._cell, self._cell + turns * self._ring)

    def columns(self, slot: int, start: int, length: int) -> Indices:
        """Where the tokens [start, start + length) of a slot are kept."""
        position, sinks = np.arange(start, start + length), self._limits.sinks
        cell = np.where(position < sinks, position, sinks + (position - sinks) % self._ring)
        return slot * self._limits.cells + cell

    def write(self, slot: int, start: int, length: int) -> None:
        """The tokens [start, start + length) are there, and none behind them."""
        _write(self._held[slot], start, length)

    def copy(self, copy: SlotCopy) -> tuple[slice, slice]:
        """A slot gets the first tokens of another; which columns to copy, from and to."""
        source, target, tokens = copy
        held = self._held[target] = self._copied(self._held[source], tokens)
        cells, used = self._limits.cells, min(held.top, self._limits.cells)
        return slice(source * cells, source * cells + used), slice(target * cells, target * cells + used)

    def _copied(self, source: Held, tokens: int) -> Held:
        """A ring that has gone round is copied as it is."""
        return Held(tokens, source.top if source.top > self._limits.cells else tokens)


def _write(held: Held, start: int, length: int) -> None:
    held.length = start + length
    held.top = max(held.top if start else 0, held.length)
