from dataclasses import replace
from typing import Any

import pytest

from engine.contract.control import PROTOCOL_VERSION, SUSPECT_SECONDS, StageHeartbeat, from_json, to_json
from engine.contract.errors import FrameError
from engine.contract.ids import Incarnation
from engine.decoder.epoch import spare_core
from engine.decoder.fleet import DISTRUST_SECONDS, Fleet, smallest_pool
from engine.decoder.pace import Pace


def heartbeat(stage: int, incarnation: int = 0, **changes: Any) -> StageHeartbeat:
    values: dict[str, Any] = {
        "stages": 2, "state": "ready", "epoch": 0, "model": "m", "split": "s", "protocol": PROTOCOL_VERSION,
        "profile": "exact", "runner": "paged", "device": "CPU", "host": "pc", "pid": 1, "blocks": 10, "block_size": 32,
        "slots": 0, "min_row_tokens": 2, "max_step_tokens": 64, "context_length": 100, "waiting": 0, "oldest_ms": 0.0,
        "busy_share": 0.0, "step_ms_p50": 0.0, "step_ms_p95": 0.0, "steps": 0, "refused": 0, "memory_mb": 1.0,
    }  # fmt: skip
    return StageHeartbeat(stage=stage, incarnation=incarnation or stage + 1, **(values | changes))


def fleet(*heartbeats: StageHeartbeat) -> Fleet:
    here = Fleet(split="s", stages=2)
    for one in heartbeats:
        here.observe(one, 0.0)
    return here


def test_a_chain_needs_a_worker_for_every_stage() -> None:
    assert fleet(heartbeat(0)).chain(0.0) == "stage 1 of 2"
    chain = fleet(heartbeat(1), heartbeat(0)).chain(0.0)
    assert not isinstance(chain, str)
    assert [worker.stage for worker in chain] == [0, 1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"split": "t" * 64}, "another split"), ({"protocol": 99}, "protocol 99"), ({"state": "loading"}, "is loading")],
)
def test_a_worker_that_does_not_fit_is_named_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    missing = fleet(heartbeat(0), heartbeat(1, **changes)).chain(0.0)
    assert isinstance(missing, str)
    assert reason in missing


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ({"profile": "exact"}, {"profile": "fast"}, "one profile: stage 0 runs exact, stage 1 runs fast"),
        ({"kv_precision": "f16"}, {"kv_precision": "u8"}, "one KV precision: stage 0 runs f16, stage 1 runs u8"),
        (
            {},
            {"dynamic_quantization": False},
            "one dynamic quantization: stage 0 runs with it, stage 1 runs without it",
        ),
    ],
)
def test_stages_that_compute_otherwise_than_each_other_are_no_chain(
    one: dict[str, Any], other: dict[str, Any], words: str
) -> None:
    missing = fleet(heartbeat(0, **one), heartbeat(1, **other)).chain(0.0)
    assert isinstance(missing, str)
    assert words in missing
    assert not isinstance(fleet(heartbeat(0, **other), heartbeat(1, **other)).chain(0.0), str)


def test_a_worker_that_does_not_say_its_precision_is_taken() -> None:
    assert not isinstance(fleet(heartbeat(0, kv_precision="f32"), heartbeat(1)).chain(0.0), str)


def test_the_newest_of_two_workers_is_chosen() -> None:
    chain = fleet(heartbeat(0, 5), heartbeat(0, 9), heartbeat(1)).chain(0.0)
    assert not isinstance(chain, str)
    assert chain[0].incarnation == 9


@pytest.mark.parametrize(
    "worse",
    [{"standby": True}, {"yields": "on battery"}, {"yields": "on battery", "state": "serving", "epoch": 3}],
)
def test_who_stands_by_or_would_give_way_serves_only_in_need(worse: dict[str, Any]) -> None:
    here = fleet(heartbeat(0, 9, **worse), heartbeat(0, 5), heartbeat(1))
    assert incarnations(here) == [5, 2]
    assert incarnations(fleet(heartbeat(0, 9, **worse), heartbeat(1))) == [9, 2]


def test_who_served_last_is_chosen_before_one_that_hung_and_came_back() -> None:
    back, sits = heartbeat(1, 9, state="serving", epoch=5), heartbeat(1, 4, state="serving", epoch=6)
    assert incarnations(fleet(heartbeat(0), back, sits)) == [1, 4]


def test_who_did_not_answer_is_the_last_choice_for_a_while() -> None:
    here = fleet(heartbeat(0), heartbeat(1, 7, state="serving", epoch=2), heartbeat(1, 4, standby=True))
    here.bury(Incarnation(7), 0.0)
    here.observe(heartbeat(1, 7, state="serving", epoch=2), 0.0)  # it speaks, but its device hangs
    assert incarnations(here) == [1, 4]
    assert incarnations(here, DISTRUST_SECONDS, heartbeat(0), heartbeat(1, 7), heartbeat(1, 4, standby=True)) == [1, 7]


def test_who_says_that_its_device_fails_is_the_last_choice_for_a_while() -> None:
    here = fleet(heartbeat(0), heartbeat(1, 7, state="serving", epoch=2), heartbeat(1, 4, standby=True))
    here.distrust(Incarnation(7), 0.0)
    assert incarnations(here) == [1, 4]
    assert incarnations(fleet(heartbeat(0), heartbeat(1, 7))) == [1, 7]


def test_who_computes_like_the_one_that_served_last_is_chosen_first() -> None:
    alike, other = heartbeat(1, 4, numerics="a", standby=True), heartbeat(1, 9, numerics="b")
    here = fleet(heartbeat(0), alike, other)
    assert incarnations(here) == [1, 9]
    here.opened((heartbeat(0), heartbeat(1, 2, numerics="a")))
    assert incarnations(here) == [1, 4]


def test_a_standby_that_computes_otherwise_is_passed_over() -> None:
    here = fleet(heartbeat(0), heartbeat(1, 9, profile="fast"), heartbeat(1, 4, standby=True))
    assert incarnations(here) == [1, 4]


def incarnations(here: Fleet, now: float = 0.0, *again: StageHeartbeat) -> list[int] | str:
    for one in again:
        here.observe(one, now)
    chain = here.chain(now)
    return chain if isinstance(chain, str) else [h.incarnation for h in chain]


SERVING = [heartbeat(0, state="serving", epoch=3), heartbeat(1, state="serving", epoch=3)]
STANDBY = heartbeat(1, 9, standby=True)


@pytest.mark.parametrize(
    ("now", "others", "concern"),
    [
        ([], [STANDBY], None),
        ([heartbeat(1, state="draining")], [], None),  # it serves until somebody else can
        ([heartbeat(1, state="draining")], [heartbeat(1, 9, state="loading", standby=True)], None),
        ([heartbeat(1, state="draining")], [STANDBY], ("is stopping", False)),
        ([heartbeat(1, yields="on battery")], [STANDBY], ("gives way (on battery)", False)),
        ([replace(SERVING[1], yields="on battery")], [replace(STANDBY, yields="busy")], None),
        ([heartbeat(1, yields="on battery")], [heartbeat(1, 9, profile="fast")], None),
    ],
)
def test_when_a_chain_is_left(
    now: list[StageHeartbeat], others: list[StageHeartbeat], concern: tuple[str, bool] | None
) -> None:
    found = fleet(*SERVING, *now, *others).concern(SERVING, 0.0)
    if concern is None:
        assert found is None
    else:
        assert found is not None and concern[0] in found.text and found.urgent == concern[1]


def test_silence_beside_a_standby_is_urgent_and_alone_it_is_nothing_to_act_on() -> None:
    here = fleet(*SERVING)
    for one in (SERVING[0], STANDBY):
        here.observe(one, SUSPECT_SECONDS)
    found = here.concern(SERVING, SUSPECT_SECONDS)
    assert found is not None and "stage 1 on pc is silent" in found.text and found.urgent
    alone = fleet(*SERVING)
    alone.observe(SERVING[0], SUSPECT_SECONDS)
    assert alone.concern(SERVING, SUSPECT_SECONDS) is None


def test_silence_makes_a_worker_missing_and_so_does_a_burial() -> None:
    here = fleet(heartbeat(0), heartbeat(1, 7))
    assert isinstance(here.chain(100.0), str)
    here.bury(Incarnation(7), 0.0)
    assert here.chain(0.0) == "stage 1 of 2"


def test_the_smallest_pool_counts_and_block_sizes_must_agree() -> None:
    assert smallest_pool([heartbeat(0, blocks=10), heartbeat(1, blocks=7)]) == (7, 32)
    assert smallest_pool([heartbeat(0, block_size=0)]) == (0, 0)
    with pytest.raises(ValueError, match="block size"):
        smallest_pool([heartbeat(0), heartbeat(1, block_size=16)])


def test_heartbeats_survive_the_wire_and_noise_is_refused() -> None:
    assert from_json(StageHeartbeat, to_json(heartbeat(0))) == heartbeat(0)
    for noise in (b"", b"[]", b"{}", b'{"stage": 0}', b"\xff"):
        with pytest.raises(FrameError):
            from_json(StageHeartbeat, noise)


def test_patience_follows_the_slowest_step_of_that_size() -> None:
    pace = Pace(floor=1.0, first=20.0)
    assert pace.patience(10) == 20.0
    pace.observe(10, 0.5)
    assert pace.patience(10) == 4.0
    assert pace.patience(40) == 16.0
    assert pace.patience(1) == 4.0


@pytest.mark.parametrize(
    ("threads", "cores", "spare"), [((1,), 2, True), ((1, 1), 2, False), ((0,), 8, False), ((2, 4), 8, True)]
)
def test_a_draft_model_has_a_core_of_its_own_when_the_stages_beside_it_leave_one(
    threads: tuple[int, ...], cores: int, spare: bool
) -> None:
    assert spare_core([heartbeat(i, threads=count) for i, count in enumerate(threads)], "pc", cores) is spare


def test_stages_elsewhere_and_on_other_devices_leave_a_draft_model_its_cores() -> None:
    assert spare_core([heartbeat(0, host="there"), heartbeat(1, device="GPU.0")], "pc", 1)
