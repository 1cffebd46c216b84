"""Which blocks of a KV cache belong to whom, and what is in those that nobody needs: the prefix cache (D4).

A block is *free*, *held* (by one sequence or, with a shared prefix, by several) or *cached* (by nobody, but its tokens
are known and may come again; the one unused for longest gives way first). A known block's key is the block before it
and its own tokens, compared one by one: two prompts never meet by a hash that happens to be equal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
_ROOT = 0
Key = tuple[int, tuple[int, ...]]  # the entry before it, the tokens of the block


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold that many tokens; 0 when the pipeline keeps no blocks (`block_size` 0)."""
    return -(-tokens // block_size) if block_size else 0


@dataclass(frozen=True, slots=True)
class _Entry:
    """What is known of a block."""

    number: int  # given once: a block that is known again later is another entry
    key: Key
    block: int


class BlockPool:
    """The blocks of one epoch.

    A freed block may still be written by a step in flight; that is harmless, because stages execute in arrival order:
    the new owner's step comes later and overwrites it. A known block is never written again: whoever registers it must
    be past it.
    """

    def __init__(self, blocks: int, block_size: int = 0) -> None:
        self.total, self._size = blocks, block_size
        self._free = list(range(blocks - 1, -1, -1))  # popped from the end: low numbers first
        self._holders = [0] * blocks
        self._entries: dict[Key, _Entry] = {}
        self._known: dict[int, _Entry] = {}  # by block
        self._unused: dict[int, None] = {}  # cached blocks, unused for longest first
        self._numbers = _ROOT  # entries made so far

    @property
    def free(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self._free) + len(self._unused)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds and whose tokens are known."""
        return len(self._unused)

    def can_allocate(self, count: int) -> bool:
        """Whether `allocate(count)` would succeed."""
        return count <= self.free

    def allocate(self, count: int) -> list[int]:
        """Take that many blocks. Raises ValueError when there are not enough: ask `can_allocate` first."""
        if not self.can_allocate(count):
            raise ValueError(f"{count} blocks wanted, {self.free} free")
        while len(self._free) < count:
            block = next(iter(self._unused))
            del self._unused[block]
            del self._entries[self._known.pop(block).key]
            self._free.append(block)
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._holders[block] = 1
        return taken

    def unused(self, blocks: Iterable[int]) -> int:
        """How many of them nobody holds."""
        return sum(block in self._unused for block in blocks)

    def entry_of(self, blocks: Sequence[int]) -> int:
        """What `register` wants to know of the blocks before those it registers, after a `match`."""
        return self._known[blocks[-1]].number if blocks else _ROOT

    def hold(self, blocks: Iterable[int]) -> None:
        """One more holder for each, as `match` found them."""
        for block in blocks:
            self._holders[block] += 1
            self._unused.pop(block, None)

    def release(self, blocks: Iterable[int]) -> None:
        """One holder less for each block of a sequence, given in its order.

        The last ones go first, also when room is needed: what follows is useless without what comes before.
        """
        for block in reversed(list(map(int, blocks))):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self._known:
                self._unused[block] = None
            else:
                self._free.append(block)

    def match(self, tokens: Sequence[int], most: int) -> list[int]:
        """Known blocks that hold the beginning of `tokens`, of at most `most` tokens together; not held yet."""
        found: list[int] = []
        before = _ROOT
        while self._size and (len(found) + 1) * self._size <= most:
            entry = self._entries.get((before, self._tokens_of(tokens, len(found))))
            if entry is None:
                break
            found.append(entry.block)
            before = entry.number
        return found

    def register(self, tokens: Sequence[int], blocks: Sequence[int], first: int, end: int, before: int) -> int:
        """Blocks [first, end) of a sequence hold its tokens for good.

        `before`: what this method returned for the blocks before them, 0 at the beginning. A block whose tokens are
        known elsewhere stays unknown itself, and is freed with its sequence.
        """
        for i in range(first, end):
            key = (before, self._tokens_of(tokens, i))
            entry = self._entries.get(key)
            if entry is None:
                self._numbers += 1
                entry = self._entries[key] = self._known[int(blocks[i])] = _Entry(self._numbers, key, int(blocks[i]))
            before = entry.number
        return before

    def _tokens_of(self, tokens: Sequence[int], i: int) -> tuple[int, ...]:
        return tuple(tokens[i * self._size : (i + 1) * self._size])
