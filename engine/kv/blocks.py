"""A pool of blocks of a KV cache: who holds them, and which may be overwritten. Stages only own the tensors (D4)."""

from collections.abc import Iterable, Sequence

from engine.kv.prefix import PrefixIndex


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold that many tokens; 0 when the pipeline keeps no blocks (`block_size` 0)."""
    return -(-tokens // block_size) if block_size else 0


class BlockPool:
    """All blocks of one epoch. Each is *free*, *held* by one or more tables, or *cached*: known, and held by nobody.

    A freed block may still be written by a step in flight; that is harmless, because stages execute in arrival order:
    the new owner's step comes later and overwrites it.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        self.total = blocks
        self.index = PrefixIndex(block_size)
        self._free = list(range(blocks - 1, -1, -1))  # popped from the end: low numbers first
        self._holders: dict[int, int] = {}
        self._cached: dict[int, None] = {}  # longest unused first

    @property
    def block_size(self) -> int:
        """Tokens of a block; 0: there are none."""
        return self.index.block_size

    @property
    def free(self) -> int:
        """Blocks with nothing of use in them."""
        return len(self._free)

    @property
    def held(self) -> int:
        """Blocks that somebody holds."""
        return len(self._holders)

    @property
    def cached(self) -> int:
        """Known blocks that nobody holds; the longest unused goes when free ones have run out."""
        return len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that can be had."""
        return len(self._free) + len(self._cached)

    def holders(self, block: int) -> int:
        """How many tables hold a block."""
        return self._holders.get(block, 0)

    def can_allocate(self, count: int, *, beside: Iterable[int] = ()) -> bool:
        """Whether `allocate(count)` would succeed once `beside` are held too."""
        return count <= self.available - sum(block in self._cached for block in beside)

    def allocate(self, count: int) -> list[int]:
        """Take that many blocks. Raises ValueError when there are not enough: ask `can_allocate` first."""
        if not self.can_allocate(count):
            raise ValueError(f"{count} blocks wanted, {self.available} available")
        taken = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        self._holders.update(dict.fromkeys(taken, 1))
        return taken

    def _evict(self) -> int:
        block = next(iter(self._cached))
        del self._cached[block]
        self.index.drop(block)
        return block

    def hold(self, blocks: Iterable[int]) -> None:
        """One more holder of each of these known blocks."""
        for block in blocks:
            self._cached.pop(block, None)
            self._holders[block] = self._holders.get(block, 0) + 1

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less of each, in their order within a sequence. Raises KeyError for one that nobody holds.

        The last is cached as the longest unused: a block goes before what it stands on.
        """
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            del self._holders[block]
            if block in self.index:
                self._cached[block] = None
            else:
                self._free.append(block)
