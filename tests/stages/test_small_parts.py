"""Load, sampling, identity, rivals, sizes and cores: the small parts of a worker."""

from typing import Any

import numpy as np
import pytest

from engine.contract.control import StageHeartbeat, WorkerState
from engine.contract.errors import DeviceError, UsageError
from stages.config import parse_cores, parse_size
from stages.cores import pin_to
from stages.heartbeat import heartbeat
from stages.identity import new_incarnation
from stages.load import Load
from stages.openvino_errors import device_errors
from stages.rivals import misfit, rival
from stages.sampling import greedy
from stages.settings import RunnerOptions, compile_properties, min_row_tokens
from tests.stages.fakes import identity


def test_busy_share_counts_only_the_window() -> None:
    load = Load(started=0.0)
    load.add(97.0, 4.0)  # two of its seconds lie in the window
    load.add(99.0, 0.5)
    assert load.busy_share(100.0) == pytest.approx(2.5 / 5)


def test_busy_share_of_a_young_worker_counts_from_its_start() -> None:
    load = Load(started=10.0)
    load.add(11.0, 1.0)
    assert load.busy_share(12.0) == pytest.approx(0.5)


def test_an_idle_worker_has_no_step_times() -> None:
    load = Load(started=0.0)
    load.add(1.0, 1.0)
    assert (load.busy_share(100.0), load.step_ms(100.0), load.computed) == (0.0, (0.0, 0.0), 1)


def test_step_times_are_percentiles_in_milliseconds() -> None:
    load = Load(started=0.0)
    for i in range(101):
        load.add(1.0, i / 1000)
    assert load.step_ms(2.0) == pytest.approx((50.0, 95.0))


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    ids = greedy(np.array([[0, 3, 3], [9, 1, 9]], np.float32))
    assert (ids.tolist(), ids.dtype) == ([1, 0], np.int32)


def test_greedy_of_nothing_is_nothing() -> None:
    assert greedy(np.zeros((0, 50), np.float32)).shape == (0,)


def test_logits_that_are_not_numbers_are_a_device_failure() -> None:
    with pytest.raises(DeviceError, match="not numbers"):
        greedy(np.array([[0, np.nan, 3]], np.float32))


def test_incarnations_fit_63_bits_and_grow_with_time() -> None:
    first = new_incarnation()
    assert first >> 16 <= new_incarnation() >> 16
    assert first < 1 << 63


def beat(state: WorkerState = "ready", **changes: Any) -> StageHeartbeat:
    return heartbeat(identity(**changes), state, Load(started=0.0), None)


MINE = identity(incarnation=7)


@pytest.mark.parametrize(
    ("mine", "state", "incarnation", "taken"),
    [
        ("loading", "ready", 8, True),
        ("loading", "serving", 6, True),
        ("loading", "loading", 6, True),  # the earlier stays
        ("loading", "loading", 8, False),
        ("loading", "draining", 6, False),
        ("loading", "ready", 7, False),  # ourselves
        ("ready", "ready", 6, False),  # who has once been ready never gives way
        ("serving", "loading", 6, False),
    ],
)
def test_who_gives_way(mine: WorkerState, state: WorkerState, incarnation: int, taken: bool) -> None:
    assert (rival(MINE, mine, beat(state, incarnation=incarnation)) is not None) == taken


@pytest.mark.parametrize("other", [{"stage": 1, "stages": 2}, {"split": "other"}])
def test_workers_of_other_places_are_no_rivals(other: dict[str, Any]) -> None:
    assert rival(MINE, "loading", beat(incarnation=6, **other)) is None


@pytest.mark.parametrize(
    ("other", "says"),
    [({"split": "other"}, "another split"), ({"profile": "fast"}, "profile fast"), ({}, "")],
)
def test_a_stranger_under_our_name_is_described(other: dict[str, Any], says: str) -> None:
    assert says in misfit(MINE, beat(incarnation=6, **other))
    assert bool(misfit(MINE, beat(incarnation=6, **other))) == bool(says)


@pytest.mark.parametrize(
    ("text", "size"), [("512MiB", 512 << 20), ("2GiB", 2 << 30), ("1.5 GB", 1_500_000_000), ("4096", 4096)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "5x", "-1GiB", "1 TiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(("text", "cores"), [("", ()), ("0", (0,)), ("3,1", (1, 3)), ("0-2,5", (0, 1, 2, 5))])
def test_cores(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1;2"])
def test_what_names_no_cores(text: str) -> None:
    with pytest.raises(UsageError, match="does not name cores"):
        parse_cores(text)


def test_a_core_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="no core 100000 here"):
        pin_to((0, 100_000))


def test_exact_is_f32_throughout_and_never_a_cache_of_8_bits() -> None:
    exact = compile_properties(RunnerOptions(profile="exact", threads=2))
    assert (exact["INFERENCE_PRECISION_HINT"], exact["KV_CACHE_PRECISION"]) == ("f32", "f32")
    assert exact["INFERENCE_NUM_THREADS"] == 2
    fast = compile_properties(RunnerOptions(profile="fast"))
    assert (fast.get("INFERENCE_PRECISION_HINT"), fast["KV_CACHE_PRECISION"]) == (None, "f16")


def test_only_paged_exact_asks_for_rows_of_two() -> None:
    options = [RunnerOptions(kind=k, profile=p) for k in ("paged", "stateful") for p in ("exact", "fast")]
    assert [min_row_tokens(o) for o in options] == [2, 1, 1, 1]


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (RuntimeError("Exception from src/a.cpp:1:\n\nno such kernel\n"), "^doing: no such kernel$"),
        (RuntimeError("std::bad_alloc"), "^doing: out of memory"),
        (MemoryError(), "^doing: out of memory"),
    ],
)
def test_native_errors_become_one_line(raised: Exception, says: str) -> None:
    with pytest.raises(DeviceError, match=says) as caught, device_errors("doing"):
        raise raised
    assert "\n" not in str(caught.value)
