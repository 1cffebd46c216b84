"""Which worker computes which layers: exact, for workers that are not alike, each within its memory.

Stages are contiguous ranges of layers. What a range costs a worker comes in as a matrix, infinite where the worker's
memory does not hold it; so this file knows neither models nor machines.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Goal = Literal["throughput", "latency"]
Costs = npt.NDArray[np.float64]  # (layers + 1, layers + 1): cost of layers [first, last); inf: not possible
MOST_FREE: Final = 12  # workers in any order: 4096 sets of them


@dataclass(frozen=True, slots=True)
class Stage:
    """One worker's part: layers [first, last)."""

    worker: int
    first: int
    last: int
    cost: float


def place(costs: Sequence[Costs], stages: int, goal: Goal, *, keep_order: bool = False) -> tuple[Stage, ...] | None:
    """The best chain of exactly `stages` of the workers; None when there is none.

    throughput: the least largest stage, among those the least sum. latency: the least sum. Exact: dynamic programming
    over sets of workers (with `keep_order`: over their sequence) and cut positions.
    """
    tables = [np.where(np.triu(np.ones_like(table), 1), table, np.inf) for table in costs]  # no stage without layers
    if not 1 <= stages <= min(len(tables), len(tables[0]) - 1):
        return None
    if goal == "throughput":
        bottleneck = _solve(tables, stages, np.maximum, keep_order)
        if bottleneck is None:
            return None
        most = max(stage.cost for stage in bottleneck)
        tables = [np.where(table <= most, table, np.inf) for table in tables]
    return _solve(tables, stages, np.add, keep_order)


def _solve(
    tables: list[Costs], stages: int, combine: Callable[..., Costs], keep_order: bool
) -> tuple[Stage, ...] | None:
    """`best[used]`: cheapest way for these workers to compute layers [0, last), and where its last stage begins.

    `used` is a set of workers as bits; with `keep_order` only those bits count that say which came last and how many.
    """
    layers = len(tables[0]) - 1
    start = np.full(layers + 1, np.inf)
    start[0] = 0.0
    best: dict[tuple[int, int], Costs] = {(0, 0): start}
    came: dict[tuple[int, int], list[tuple[int, int, tuple[int, int]]]] = {}
    for count in range(stages):
        for state in [state for state in best if _count(state, keep_order) == count]:
            for worker, after in _following(state, len(tables), keep_order):
                _extend(best, came, state, after, worker, combine(best[state][:, None], tables[worker]))
    ends = [state for state in best if _count(state, keep_order) == stages and np.isfinite(best[state][layers])]
    if not ends:
        return None
    state, last, chain = min(ends, key=lambda end: float(best[end][layers])), layers, list[Stage]()
    while last:
        worker, first, before = came[state][last]
        chain.append(Stage(worker, first, last, float(tables[worker][first, last])))
        state, last = before, first
    return tuple(reversed(chain))


def _count(state: tuple[int, int], keep_order: bool) -> int:
    return state[1] if keep_order else state[0].bit_count()


def _following(state: tuple[int, int], workers: int, keep_order: bool) -> list[tuple[int, tuple[int, int]]]:
    """Workers that may come next, and the state then: (next worker to look at, stages) or (set of workers, 0)."""
    used, count = state
    if keep_order:
        return [(worker, (worker + 1, count + 1)) for worker in range(used, workers)]
    return [(worker, (used | 1 << worker, 0)) for worker in range(workers) if not used >> worker & 1]


def _extend(
    best: dict[tuple[int, int], Costs],
    came: dict[tuple[int, int], list[tuple[int, int, tuple[int, int]]]],
    state: tuple[int, int],
    after: tuple[int, int],
    worker: int,
    combined: Costs,
) -> None:
    first = combined.argmin(0)
    value = combined[first, np.arange(combined.shape[1])]
    if after not in best:
        best[after] = np.full(len(value), np.inf)
        came[after] = [(-1, -1, state)] * len(value)
    for last in np.flatnonzero(value < best[after]).tolist():
        best[after][last] = value[last]
        came[after][last] = (worker, int(first[last]), state)
