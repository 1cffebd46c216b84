"""The blocks of one sequence.

What is known is never written again. That holds because a block becomes known only when it is full of tokens that are
certain and whose computation is over, and because every later row starts behind it:

- *Dummies and rejected drafts* lie behind the last certain token, so never in a block full of certain ones.
- *Windows sent ahead* start where the row in front of them ends. When that row's drafts fail they still write, but
  behind all that the row confirmed; what they wrote is overwritten before it is confirmed, since the row that corrects
  them was sent later and stages execute in order.
- *Steps in flight of removed or preempted sequences* write behind what was confirmed of them: into blocks that were
  not known, whose new owner writes every position, later, before it makes them known.
- *Rows that start earlier at the end of the context* rewrite the tokens before them. Blocks that reach this far are
  never made known (`CacheTables.confirm`).
- *A draft model* may be told that tokens it has read were wrong: it cuts its table in front of their block
  (`BlockTable.cut`).
- *A twin*, computed beside another sequence, is swapped for the known block and freed: steps in flight read the twin,
  and are executed before its next owner's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.kv.blocks import BlockPool, blocks_for
from engine.kv.prefix import ROOT, Entry, Place


@dataclass(slots=True)
class BlockTable:
    """Blocks in the order of their tokens; the first of them are known, and so perhaps others' too."""

    blocks: list[int] = field(default_factory=list[int])
    known: list[Entry] = field(default_factory=list[Entry])

    def share(self, pool: BlockPool, places: Sequence[Place]) -> int:
        """Begin an empty table with known blocks; returns how many tokens they hold."""
        self.blocks = [place.block for place in places]
        self.known = [place.entry for place in places]
        pool.hold(self.blocks)
        return len(places) * pool.block_size

    def grow(self, pool: BlockPool, tokens: int) -> bool:
        """Have blocks for that many tokens; False, and nothing changed, when the pool has too few."""
        missing = blocks_for(tokens, pool.block_size) - len(self.blocks)
        if missing > 0:
            if not pool.can_allocate(missing):
                return False
            self.blocks += pool.allocate(missing)
        return True

    def register(self, pool: BlockPool, tokens: Sequence[int], end: int) -> None:
        """The first `end` of `tokens` are certain, and computed on every stage: make their full blocks known."""
        size = pool.block_size
        while size and (at := len(self.known)) < end // size:
            before = self.known[-1] if self.known else ROOT
            place = pool.index.add(before, tokens[at * size : (at + 1) * size], self.blocks[at])
            if place.block != self.blocks[at]:
                pool.hold([place.block])
                pool.release([self.blocks[at]])
                self.blocks[at] = place.block
            self.known.append(place.entry)

    def cut(self, pool: BlockPool, start: int) -> int:
        """What follows `start` will be written: give up known blocks there. Returns where writing must begin."""
        if start >= len(self.known) * pool.block_size:
            return start
        first = start // pool.block_size
        pool.release(self.blocks[first:])
        del self.blocks[first:], self.known[first:]
        return first * pool.block_size

    def clear(self, pool: BlockPool) -> None:
        """Give everything back."""
        pool.release(self.blocks)
        self.blocks, self.known = [], []
