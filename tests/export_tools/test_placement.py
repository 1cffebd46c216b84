import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export_tools.placement import Goal, Stage, place

Tables = list[np.ndarray]


@st.composite
def fleets(draw: st.DrawFn) -> Tables:
    """Any costs at all, some of them impossible: the solver may assume nothing of them."""
    layers, workers = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    cost = st.one_of(st.integers(1, 9).map(float), st.just(np.inf))
    size = layers + 1
    return [
        np.array(draw(st.lists(cost, min_size=size**2, max_size=size**2))).reshape(size, size) for _ in range(workers)
    ]


def every_chain(tables: Tables, stages: int, keep_order: bool) -> list[tuple[Stage, ...]]:
    layers = len(tables[0]) - 1
    orders = itertools.combinations if keep_order else itertools.permutations
    return [
        tuple(
            Stage(w, a, b, float(tables[w][a, b]))
            for w, (a, b) in zip(order, itertools.pairwise((0, *cuts, layers)), strict=True)
        )
        for order in orders(range(len(tables)), stages)
        for cuts in itertools.combinations(range(1, layers), stages - 1)
    ]


def value(chain: tuple[Stage, ...], goal: Goal) -> tuple[float, ...]:
    costs = [stage.cost for stage in chain]
    return (sum(costs),) if goal == "latency" else (max(costs), sum(costs))


@settings(max_examples=300, deadline=None)
@given(fleets(), st.integers(1, 4), st.sampled_from(["throughput", "latency"]), st.booleans())
def test_no_chain_of_that_many_workers_is_better(tables: Tables, stages: int, goal: Goal, keep_order: bool) -> None:
    found = place(tables, stages, goal, keep_order=keep_order)
    possible = [c for c in every_chain(tables, stages, keep_order) if np.isfinite(sum(stage.cost for stage in c))]
    if found is None:
        assert not possible
    else:
        assert found in possible
        assert value(found, goal) == min(value(chain, goal) for chain in possible)


@pytest.mark.parametrize("stages", [0, 3, -1])
def test_numbers_of_stages_that_cannot_be_are_no_chain(stages: int) -> None:
    assert place([np.ones((3, 3))] * 2, stages, "throughput") is None


def test_a_chain_of_twelve_workers_in_any_order_is_found_in_seconds() -> None:
    random = np.random.default_rng(0)
    tables = [np.abs(np.subtract.outer(np.arange(33), np.arange(33))) * speed for speed in random.uniform(1, 3, 12)]
    chain = place([table.astype(float) for table in tables], 12, "throughput")
    assert chain is not None
    assert len({stage.worker for stage in chain}) == 12
