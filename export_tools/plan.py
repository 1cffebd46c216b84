"""Which layers go to which stage: contiguous ranges with the least largest stage."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from engine.contract.errors import UsageError


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of weights per part of a model."""

    layers: tuple[int, ...]
    embedding: int
    head: int  # counted again when it is the embedding's own matrix: the last stage holds it too

    def of(self, first: int, last: int) -> int:
        """Bytes of a stage with the layers [first, last)."""
        ends = (self.embedding if first == 0 else 0) + (self.head if last == len(self.layers) else 0)
        return sum(self.layers[first:last]) + ends


def even_plan(weights: Weights, stages: int) -> tuple[tuple[int, int], ...]:
    """Half-open layer ranges that minimise the largest stage's bytes, embedding and head included.

    Exact: dynamic programming over cut positions. Raises UsageError.
    """
    layers = len(weights.layers)
    if not 1 <= stages <= layers:
        raise UsageError(f"--stages {stages}: this model has {layers} layers, so 1 to {layers} stages are possible")
    sums = [0]
    for size in weights.layers:
        sums.append(sums[-1] + size)

    def cost(first: int, last: int) -> int:
        extra = (weights.embedding if first == 0 else 0) + (weights.head if last == layers else 0)
        return sums[last] - sums[first] + extra

    best: list[list[tuple[int, int]]] = [[(cost(0, last), 0) for last in range(layers + 1)]]
    for stage in range(1, stages):
        row = [(1 << 62, 0)] * (layers + 1)
        for last in range(stage + 1, layers + 1):
            row[last] = min((max(best[-1][cut][0], cost(cut, last)), cut) for cut in range(stage, last))
        best.append(row)
    edges, last = [layers], layers
    for stage in range(stages - 1, 0, -1):
        last = best[stage][last][1]
        edges.append(last)
    return ranges([0, *reversed(edges)])


def explicit_plan(counts: Sequence[int], layers: int) -> tuple[tuple[int, int], ...]:
    """Half-open ranges from layers per stage, e.g. (18, 12). Raises UsageError."""
    if any(count < 1 for count in counts) or sum(counts) != layers:
        given = ",".join(map(str, counts))
        raise UsageError(f"--layers {given}: every stage needs a layer, and together they must be {layers}")
    edges = [0]
    for count in counts:
        edges.append(edges[-1] + count)
    return ranges(edges)


def ranges(edges: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Pairs of neighbouring edges."""
    return tuple(pairwise(edges))
