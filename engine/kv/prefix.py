"""Which block holds which tokens: full blocks, found by what they hold and what precedes them.

A block's key is the entry of its predecessor and its own tokens, compared exactly: no hash stands for tokens, so two
beginnings that differ never meet. Entries are never numbered twice: what followed a dropped one cannot be reached any
more, and is never mistaken for what follows another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NewType

Entry = NewType("Entry", int)
ROOT: Final = Entry(0)  # precedes every first block


@dataclass(frozen=True, slots=True)
class Place:
    """A known block and where it stands."""

    entry: Entry
    block: int


class PrefixIndex:
    """Known blocks. Who holds them, and when one is dropped, is the pool's business."""

    def __init__(self, block_size: int) -> None:
        """`block_size`: tokens of a block; 0: there are no blocks, nothing is ever found."""
        self.block_size = block_size
        self._places: dict[tuple[Entry, tuple[int, ...]], Place] = {}
        self._keys: dict[int, tuple[Entry, tuple[int, ...]]] = {}  # by block
        self._newest = ROOT

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def match(self, tokens: Sequence[int], most: int) -> list[Place]:
        """The longest known beginning of `tokens`, of at most `most` tokens, first block first."""
        found: list[Place] = []
        size, before = self.block_size, ROOT
        for end in range(size, min(most, len(tokens)) + 1, size) if size else ():
            place = self._places.get((before, tuple(tokens[end - size : end])))
            if place is None:
                break
            found.append(place)
            before = place.entry
        return found

    def add(self, before: Entry, tokens: Sequence[int], block: int) -> Place:
        """`block` holds `tokens` behind the blocks up to `before`; where another holds the same, that one is returned.

        Raises ValueError for a block that is not full, or known already with other tokens.
        """
        key = (before, tuple(tokens))
        if len(tokens) != self.block_size or self._keys.get(block, key) != key:
            raise ValueError(f"block {block} cannot be known by {len(tokens)} tokens behind {before}")
        if (known := self._places.get(key)) is not None:
            return known
        self._newest = Entry(self._newest + 1)
        self._keys[block] = key
        place = self._places[key] = Place(self._newest, block)
        return place

    def drop(self, block: int) -> None:
        """The block will be overwritten. Raises KeyError when it is not known."""
        del self._places[self._keys.pop(block)]
