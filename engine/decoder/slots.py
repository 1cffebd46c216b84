"""Slots of stages that keep a state per sequence: whose they are, and what the unused ones still hold.

A new sequence that begins like another one takes over that one's slot, or has its state copied. Copies travel with the
next step and are executed before its rows, so they see what earlier steps left, whatever becomes of the source since.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Final

from engine.contract.copies import SlotCopy
from engine.contract.drafts import common_prefix

LEAST_SHARED: Final = 32  # tokens: below that a copy costs as much as reading them


@dataclass(frozen=True, slots=True)
class SlotPlace:
    """A slot for a sequence, and how many of its tokens are in there when its first row comes."""

    slot: int
    held: int


class SlotPool:
    """All slots of one epoch. `copies` are to go with the next step."""

    def __init__(self, slots: int, *, keeps: bool, window: int = 0) -> None:
        """`keeps`: the stages keep a state per slot; otherwise slots are mere numbers.

        `window`: of a sequence longer than that they keep only a part, which is of no use to another; 0: all.
        """
        self.keeps, self._window = keeps, window
        self._empty = list(range(slots - 1, -1, -1))
        self._cached: dict[int, list[int]] = {}  # slot: its tokens; longest unused first
        self.copies: list[SlotCopy] = []

    @property
    def free(self) -> int:
        """Slots that can be had."""
        return len(self._empty) + len(self._cached)

    @property
    def cached(self) -> int:
        """Slots that nobody uses and that hold something."""
        return len(self._cached)

    def whole(self, tokens: int) -> bool:
        """Whether a slot still has all of a sequence with so many tokens."""
        return not self._window or tokens <= self._window

    def take(self, tokens: Items[int], most: int, running: Iterable[tuple[int, list[int]]]) -> SlotPlace:
        """A slot for a sequence, with up to `most` of its tokens where some slot holds them; ask `free` first.

        `running`: slots in use and the certain tokens in them.
        """
        source, shared = self._source(tokens, most, running) if self.keeps else (-1, 0)
        if source < 0:
            return SlotPlace(self._empty.pop() if self._empty else self._evict(), 0)
        mine = self._cached.pop(source, None)
        if mine is not None and (not self.free or len(mine) - shared < LEAST_SHARED):
            return SlotPlace(source, shared)  # nothing that anybody else could use is lost
        slot = self._empty.pop() if self._empty else self._evict()
        if mine is not None:
            self._cached[source] = mine  # the latest used
        self.copies.append(SlotCopy(source, slot, shared))
        return SlotPlace(slot, shared)

    def _source(self, tokens: Items[int], most: int, running: Iterable[tuple[int, list[int]]]) -> tuple[int, int]:
        found = [(common_prefix(held, tokens), slot) for slot, held in (*self._cached.items(), *running)]
        shared, slot = max(found, default=(0, -1), key=lambda each: each[0])
        shared = min(shared, most)
        return (slot, shared) if shared >= LEAST_SHARED else (-1, 0)

    def _evict(self) -> int:
        slot = next(iter(self._cached))
        del self._cached[slot]
        return slot

    def give_back(self, slot: int, tokens: list[int]) -> None:
        """A sequence leaves; its certain `tokens` stay in the slot while nobody needs it."""
        if self.keeps and len(tokens) >= LEAST_SHARED and self.whole(len(tokens)):
            self._cached[slot] = tokens
        else:
            self._empty.append(slot)

    def take_copies(self) -> tuple[SlotCopy, ...]:
        """What the step that is sent now has to carry."""
        copies, self.copies = tuple(self.copies), []
        return copies
