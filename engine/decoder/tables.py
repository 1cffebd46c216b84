"""Block tables of the running sequences: what they start with, how they grow, who gives way, what is remembered.

Blocks are given out as they are needed, not for the longest answer possible; when they run out the youngest sequence
gives way and is replayed later. The oldest never gives way, and no sequence is accepted that the whole pool could not
hold, so every one of them ends.
"""

from collections.abc import Sequence as Items
from typing import Final

import numpy as np

from engine.contract.control import PrefixCache
from engine.contract.drafts import MAX_DRAFT_TOKENS
from engine.decoder.sequence import Sequence
from engine.kv.blocks import BlockPool, blocks_for

UNSHARED_TOKENS: Final = 2  # last ones of a prompt: at least so many are computed, for there must be a row to answer
HEADROOM: Final = 2 * (MAX_DRAFT_TOKENS + 1)  # tokens: the longest row, and another one sent ahead


class PrefixFigures:
    """What the prefix cache brought, since start."""

    def __init__(self) -> None:
        self.lookups = self.hits = self.tokens = self.saved = 0

    def count(self, tokens: int, saved: int) -> None:
        """A sequence of so many tokens starts, and so many need not be computed."""
        self.lookups += 1
        self.hits += saved > 0
        self.tokens += tokens
        self.saved += saved


class BlockTables:
    """Of one epoch; `figures` outlive it."""

    def __init__(self, blocks: int, block_size: int, figures: PrefixFigures) -> None:
        self.pool, self._size, self._figures = BlockPool(blocks, block_size), block_size, figures

    @property
    def shares(self) -> bool:
        """Whether there are blocks at all."""
        return self._size > 0

    def admit(self, sequence: Sequence, running: int) -> bool:
        """Give a sequence what it starts with, shared blocks first; False: not enough blocks now.

        One block per running sequence is left alone, or whoever comes would soon have to give way.
        """
        shared = self.pool.match(sequence.tokens, len(sequence.tokens) - UNSHARED_TOKENS)
        wanted = self._wanted(sequence)
        unused = self.pool.unused(shared)  # held from now on: they are not there to be allocated
        if not self.pool.can_allocate(wanted - len(shared) + unused + (running if wanted < self.pool.total else 0)):
            return False
        self.pool.hold(shared)
        own = self.pool.allocate(wanted - len(shared))
        sequence.start_with(np.array([*shared, *own], np.int32), len(shared) * self._size)
        sequence.known, sequence.entry = len(shared), self.pool.entry_of(shared)
        self._figures.count(len(sequence.tokens), sequence.sent)
        return True

    def _wanted(self, sequence: Sequence) -> int:
        return blocks_for(min(sequence.limit, sequence.length + HEADROOM), self._size)

    def grow(self, running: Items[Sequence]) -> list[Sequence]:
        """Give every sequence room for its next rows; those who had to give way for it, youngest first.

        Their blocks are free again; everything else about them is left to the caller.
        """
        ranked, gone = sorted(running, key=rank), list[Sequence]()
        while ranked:
            sequence = ranked[0]
            missing = self._wanted(sequence) - len(sequence.blocks)
            if missing <= 0 or self.pool.can_allocate(missing):
                if missing > 0:
                    sequence.blocks = np.append(sequence.blocks, np.array(self.pool.allocate(missing), np.int32))
                ranked.pop(0)
                continue
            last = ranked.pop()
            self.release(last)
            gone.append(last)
        return gone

    def remember(self, sequence: Sequence) -> None:
        """Its blocks up to what results have confirmed may be shared from now on (never one that is written again).

        A later row starts at its last certain token, or one before that at the end of the context.
        """
        end = max(sequence.confirmed - 1, 0) // self._size if self._size else 0
        if end > sequence.known:
            blocks: list[int] = sequence.blocks[:end].tolist()
            sequence.entry = self.pool.register(sequence.tokens, blocks, sequence.known, end, sequence.entry)
            sequence.known = end

    def release(self, sequence: Sequence) -> None:
        """Its blocks are free, or cached."""
        self.pool.release(sequence.blocks)
        sequence.blocks = sequence.blocks[:0]

    def figures(self) -> PrefixCache:
        """For the decoder's heartbeat."""
        figures = self._figures
        return PrefixCache(
            lookups=figures.lookups,
            hits=figures.hits,
            tokens=figures.tokens,
            saved=figures.saved,
            cached_blocks=self.pool.cached,
        )


def rank(sequence: Sequence) -> tuple[int, float]:
    """Who keeps its blocks: the more important, then the older."""
    return (-sequence.priority, sequence.arrived)
