"""Which blocks of the KV pool belong to whom. The decoder owns this table; stages only own the tensors (D4)."""

from engine.contract.messages import IntArray


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold that many tokens; 0 when the pipeline keeps no blocks (`block_size` 0)."""
    return -(-tokens // block_size) if block_size else 0


class BlockPool:
    """Free blocks of one epoch. A block belongs to one sequence at a time.

    A freed block may still be written by a step in flight; that is harmless, because stages execute in arrival order:
    the new owner's step comes later and overwrites it.
    """

    def __init__(self, blocks: int) -> None:
        self.total = blocks
        self._free = list(range(blocks - 1, -1, -1))  # popped from the end: low numbers first

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def can_allocate(self, count: int) -> bool:
        """Whether `allocate(count)` would succeed."""
        return count <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take that many blocks. Raises ValueError when there are not enough: ask `can_allocate` first."""
        if not self.can_allocate(count):
            raise ValueError(f"{count} blocks wanted, {len(self._free)} free")
        return [self._free.pop() for _ in range(count)]

    def release(self, blocks: IntArray | list[int]) -> None:
        """Give blocks back."""
        self._free.extend(int(block) for block in reversed(blocks))
