"""A model that is arithmetic, and the cache of blocks from which a paged shard of it reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from operator import mul

import numpy as np
import numpy.typing as npt

from engine.contract.messages import Rows


def digest(history: Sequence[int]) -> int:
    """A number that depends on every token and its place."""
    return sum(map(mul, history, count(1))) + len(history)


@dataclass(frozen=True, slots=True)
class FedRow:
    """One row, and what a shard that read its tokens back from the blocks would see."""

    start: int
    length: int
    picked: int
    first: int  # position of the first picked token
    history: list[int]  # all tokens up to the row's end; -1 where nobody ever wrote

    def picks(self) -> Iterator[list[int]]:
        """The tokens up to each position whose next token is wanted."""
        return (self.history[: at + 1] for at in range(self.first, self.first + self.picked))


class BlockCache:
    """Holds what was written last into each place of each block, whoever wrote it."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self._size = block_size
        self._tokens = np.full((blocks, block_size), -1, np.int64)

    def feed(self, rows: Rows, tokens: npt.NDArray[np.integer]) -> Iterator[FedRow]:
        """Write the rows one after the other to where their block tables say, and read each of them back."""
        at = block_at = 0
        for start, length, _, picked_start, picked, used in rows.table.tolist():
            places = np.arange(start + length)
            blocks = rows.blocks[block_at : block_at + used][places // self._size]
            self._tokens[blocks[start:], places[start:] % self._size] = tokens[at : at + length]
            history = self._tokens[blocks, places % self._size].tolist()
            yield FedRow(start, length, picked, start + picked_start, history)
            at, block_at = at + length, block_at + used

    def clear(self) -> None:
        """As after the loss of an epoch."""
        self._tokens[:] = -1
