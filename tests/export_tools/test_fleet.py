from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.contract.errors import UsageError
from engine.contract.probe import Probe, Timing, load_probe
from export_tools.fleet import Task, at_rows, costs, memory_needed, plan_fleet
from export_tools.plan import Weights

GIB = 1 << 30


def decode(rows: int, layer: float, *, fixed: float = 0.0, head: float | None = None) -> Timing:
    return Timing(load="decode", rows=rows, tokens=1, layer=layer, fixed=fixed, embedding=0.0, head=head)


def probe(name: str, *timings: Timing, memory: int = 64 * GIB, hop_ms: float | None = 0.0) -> Probe:
    return Probe(
        name=name,
        model="m",
        source_digest="",
        layers=(0, 10),
        device="CPU",
        runner="paged",
        profile="exact",
        threads=1,
        context=256,
        timings=timings,
        memory=memory,
        memory_per_weight=1.0,
        overhead=0,
        hop_ms=hop_ms,
    )


def task(**changes: int) -> Task:
    return replace(
        Task(weights=Weights((100,) * 10, 0, 0), kv_bytes_per_token=10, users=4, context=100, hop_ms=0.0), **changes
    )


FAST = probe("fast", decode(1, 1.0, head=0.0), decode(2, 2.0, head=0.0))  # twice the rows, twice the time
SLOW = probe("slow", decode(1, 4.0, head=0.0), decode(2, 8.0, head=0.0))


def test_a_worker_four_times_as_fast_gets_four_times_the_layers() -> None:
    best = plan_fleet(task(), [SLOW, FAST], "throughput")[0]
    assert [(stage.worker, stage.last - stage.first) for stage in best.stages] in ([(0, 2), (1, 8)], [(1, 8), (0, 2)])
    assert best.tokens_per_second == pytest.approx(4 / 32e-3)  # two groups of two rows, each 16 ms on either stage
    assert best.token_ms == 16


def test_for_one_user_alone_the_fast_worker_does_it_all() -> None:
    best = plan_fleet(task(users=1), [SLOW, FAST], "latency")[0]
    assert [stage.worker for stage in best.stages] == [1]
    assert best.token_ms == 10


def test_hops_are_one_more_than_stages_and_bound_a_lone_users_speed() -> None:
    far = [replace(one, hop_ms=5.0) for one in (FAST, SLOW)]
    two = next(option for option in plan_fleet(task(users=1), far, "throughput") if len(option.stages) == 2)
    assert two.hops_ms == 15
    assert two.tokens_per_second == pytest.approx(1e3 / (16 + 15))


def test_a_head_counts_where_the_last_layers_are() -> None:
    heavy = [probe(name, decode(1, 1.0, head=4.0), decode(2, 2.0, head=8.0)) for name in "ab"]
    best = plan_fleet(task(), heavy, "throughput")[0]
    assert best.layers == (7, 3)


def test_a_head_that_a_worker_did_not_measure_is_as_much_slower_as_its_layers() -> None:
    blind = probe("blind", decode(1, 2.0))
    seeing = probe("seeing", decode(1, 1.0, head=3.0))
    table = costs(task(), blind, [blind, seeing], 1)
    assert table[9, 10] - table[8, 9] == pytest.approx(6.0)


def test_a_head_that_nobody_measured_takes_time_by_its_bytes() -> None:
    blind = probe("blind", decode(1, 2.0))
    table = costs(replace(task(), weights=Weights((100,) * 10, 0, 250)), blind, [blind], 1)
    assert table[9, 10] - table[8, 9] == pytest.approx(5.0)


@pytest.mark.parametrize(("rows", "time"), [(1, 1.0), (2, 2.0), (4, 4.0), (8, 6.0), (16, 10.0), (32, 18.0)])
def test_times_between_measured_rows_lie_on_straight_lines(rows: int, time: float) -> None:
    assert at_rows(probe("x", decode(1, 1.0), decode(4, 4.0), decode(16, 10.0)), lambda t: t.layer, rows) == time


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 900), st.integers(1, 5)), min_size=1, max_size=4),
    st.integers(1, 6),
    st.sampled_from(["throughput", "latency"]),
)
def test_no_workers_memory_is_ever_exceeded(workers: list[tuple[int, int]], users: int, goal: str) -> None:
    wanted = replace(task(users=users, context=20), weights=Weights((60, 70, 80, 60), 50, 90))
    fleet = [probe(str(i), decode(1, float(ms)), memory=size) for i, (size, ms) in enumerate(workers)]
    fleet = [replace(one, layers=(0, 4)) for one in fleet]
    try:
        options = plan_fleet(wanted, fleet, goal)  # pyright: ignore[reportArgumentType]
    except UsageError as error:
        assert "no cut fits" in str(error)
        return
    for option in options:
        for stage in option.stages:
            assert memory_needed(wanted, fleet[stage.worker], stage.first, stage.last) <= fleet[stage.worker].memory


def test_the_cache_of_all_users_counts_as_memory() -> None:
    # 1000 bytes of weights, and 10 layers x 1 byte x users x 100 tokens
    assert memory_needed(task(users=3), FAST, 0, 10) == 4000
    assert memory_needed(replace(task(users=3), kv_precision="f16"), FAST, 0, 10) == 2500
    assert memory_needed(task(users=3), replace(FAST, memory_per_weight=2.0, overhead=7), 0, 10) == 5007
    with pytest.raises(UsageError, match="lower --users"):
        plan_fleet(task(users=3), [replace(FAST, memory=3999)], "throughput")


def test_too_many_workers_need_an_order() -> None:
    fleet = [replace(FAST, name=str(i)) for i in range(13)]
    with pytest.raises(UsageError, match="--keep-order"):
        plan_fleet(task(), fleet, "throughput")
    assert plan_fleet(task(), fleet, "throughput", keep_order=True)


def test_a_probe_comes_back_from_its_json(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_bytes(FAST.dumps())
    assert load_probe(tmp_path / "p.json") == FAST


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"schema": 1}', b'{"schema": 1, "timings": [{}], "layers": []}'])
def test_what_is_no_probe_is_named(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_bytes(text)
    with pytest.raises(UsageError, match=r"p\.json"):
        load_probe(tmp_path / "p.json")
