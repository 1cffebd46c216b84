"""The real decoder core on a pipeline in virtual time: what the scheduler promises, over many seeds."""

import random
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from engine.decoder.core import Capacity
from engine.decoder.waiting import LEVEL_SECONDS
from tests.decoder.fakes import capacity
from tests.decoder.simulation import Simulation, Stage, answer_to, percentile

pytestmark = pytest.mark.pipelines

DEAR_TOKENS = Stage(0.017, 0.004, 0.004)  # as measured on a core without vector instructions for 4-bit weights
CHEAP_TOKENS = Stage(0.03, 0.0005, 0.0005)
QUICK = Stage(0.005, 0.001, 0.0002)


def pool(**changes: Any) -> Capacity:
    values = {"blocks": 8192, "slots": 64, "stages": 2, "block_size": 16, "prefill_tokens": 256}
    return capacity(**({**values, "context_length": 4096, "max_bytes": 1 << 22} | changes))


def users(simulation: Simulation, count: int, answer: int = 1500) -> None:
    for i in range(count):
        simulation.submit(0.001 * i, f"u{i}", prompt=40, answer=answer)


def no_block_leaks(simulation: Simulation) -> None:
    """Beginnings may be shared; tests/decoder/test_cache_simulation.py looks at who holds what."""
    core = simulation.core
    held = {block for one in core.running for block in one.table.blocks}
    assert core.capacity is None or len(held) + core.blocks.available == core.blocks.total


def random_load(seed: int) -> Simulation:
    """60 requests in bursts, some cancelled, over links and stages that differ, with up to two epochs lost."""
    rng = random.Random(seed)
    stages = rng.choice([1, 2, 3])
    simulation = Simulation(
        pool(blocks=rng.choice([40, 150, 400]), slots=rng.choice([3, 8, 16]), stages=stages, prefill_tokens=64),
        stages=tuple(rng.choice([QUICK, CHEAP_TOKENS, Stage()]) for _ in range(stages)),
        hop=rng.choice([0.0, 0.0, 0.01, 0.05]),
        jitter=0.1,
        noise=0.1,
        seed=seed,
    )
    time = 0.0
    for i in range(60):
        time += rng.expovariate(20.0) if rng.random() < 0.9 else rng.expovariate(0.5)
        prompt = rng.randint(1, 60) if rng.random() < 0.8 else rng.randint(60, 400)
        simulation.submit(time, f"r{i}", prompt, rng.randint(1, 16), priority=rng.randint(-9, 9))
        if rng.random() < 0.1:
            simulation.cancel(time + rng.expovariate(1.0), f"r{i}")
    for _ in range(rng.randint(0, 2)):
        simulation.lose_epoch(rng.uniform(0, time), pause=0.5)
    return simulation


@pytest.mark.parametrize("seeds", [range(i, i + 7) for i in range(0, 28, 7)])
def test_under_any_load_every_answer_comes_whole_and_right_and_no_block_leaks(seeds: range) -> None:
    for seed in seeds:
        simulation = random_load(seed)
        simulation.run(check=partial(no_block_leaks, simulation))
        assert len(simulation.all) == 60
        for prompt, one in simulation.all.values():
            right = answer_to(prompt, one.answer.rules.max_tokens)
            if one.answer.finish == "cancelled":
                assert one.answer.ids == right[: len(one.answer.ids)], seed
            else:
                assert (one.answer.finish, one.answer.ids) == ("length", right), seed
        assert simulation.core.blocks.available == simulation.core.blocks.total
        assert not simulation.core.running
        assert not simulation.core.waiting


@pytest.mark.parametrize("seed", range(2))
def test_requests_are_admitted_in_order_and_no_answer_stalls(seed: int) -> None:
    rng = random.Random(seed)
    simulation = Simulation(pool(slots=8), stages=(QUICK, QUICK), noise=0.1, seed=seed)
    for i in range(200):
        simulation.submit(0.01 * i, f"r{i}", rng.randint(1, 200), rng.randint(1, 40))
    simulation.run()
    order = sorted(simulation.all.values(), key=lambda item: item[1].arrived)
    admitted = [one.admitted or 0.0 for _, one in order]
    assert admitted == sorted(admitted)  # first come, first served
    assert max(gap for name in simulation.all for gap in simulation.gaps(name)) < 0.5


def test_the_lowest_priority_waits_for_levels_not_for_ever() -> None:
    simulation = Simulation(pool(slots=1, blocks=64), stages=(Stage(fixed=2.0),))
    simulation.submit(0.5, "low", 10, 1, priority=-9)
    for i in range(400):  # one every two seconds: always somebody else to be admitted
        simulation.submit(2.0 * i, f"high{i}", 10, 1, priority=9)
    simulation.run(until=700.0)
    low = simulation.all["low"][1]
    assert 18 * LEVEL_SECONDS <= (low.admitted or 0.0) - low.arrived < 20 * LEVEL_SECONDS


@pytest.mark.parametrize("each", [1, 2, 8, 20])
@pytest.mark.parametrize("stages", [(Stage(), Stage()), (Stage(), Stage(), Stage()), (Stage(), QUICK), (DEAR_TOKENS,)])
def test_with_work_for_all_the_slowest_stage_never_rests(stages: tuple[Stage, ...], each: int) -> None:
    simulation = Simulation(pool(stages=len(stages)), stages=stages, noise=0.05)
    users(simulation, each * len(stages))
    simulation.run(until=2.0)
    before = max(simulation.busy)
    simulation.run(until=7.0)
    assert max(simulation.busy) - before >= 0.9 * 5.0


def test_groups_of_unlike_contexts_take_equally_long() -> None:
    stage = Stage(position=5e-6)
    simulation = Simulation(pool(stages=0, steps_in_flight=2), stages=(stage, stage))
    for i in range(6):
        simulation.submit(0.0, f"u{i}", prompt=1500 if i < 2 else 20, answer=400)
    simulation.run(until=10.0)
    seconds = [stage.seconds(step) for _, step in simulation.steps[-20:]]
    assert max(seconds) < 1.25 * min(seconds)  # three and three, long ones together: 1.5


def test_a_slow_link_makes_the_pipe_deeper_and_costs_many_users_little() -> None:
    speeds, depths = {}, {}
    for hop in (0.0, 0.01, 0.05):
        simulation = Simulation(pool(), hop=hop, jitter=0.1, noise=0.05)
        users(simulation, 64)
        simulation.run(until=16.0)
        speeds[hop] = simulation.tokens_per_second(8.0, 16.0)
        depths[hop] = simulation.core.schedule.allowed
    assert depths[0.0] <= depths[0.01] < depths[0.05]
    assert speeds[0.05] >= 0.8 * speeds[0.0]


def test_what_is_reported_is_what_the_pipe_takes() -> None:
    simulation = Simulation(pool(), hop=0.05)
    users(simulation, 8)
    simulation.run(until=8.0)
    figures = simulation.core.schedule.figures(simulation.core.running)
    rows = 8 / figures.depth
    step = 1e3 * (0.015 + rows * (0.002 + 2 * 0.001))
    assert figures.depth > 2
    assert figures.step_ms == pytest.approx(step, rel=0.15)
    assert figures.loop_ms == pytest.approx(150 + 2 * step, rel=0.1)
    assert figures.budget_ms > figures.step_ms


def test_the_depth_does_not_flap() -> None:
    simulation, depths = Simulation(pool(), hop=0.02, jitter=0.1, noise=0.1), list[int]()
    users(simulation, 24)
    simulation.run(until=10.0)
    simulation.run(until=25.0, check=lambda: depths.append(simulation.core.schedule.limits.steps_in_flight))
    changes = sum(a != b for a, b in pairwise(depths))
    assert changes <= 4
    assert max(depths) - min(depths) <= 2


@pytest.mark.parametrize("hop", [0.0, 0.05])
@pytest.mark.parametrize("stage", [Stage(), DEAR_TOKENS, CHEAP_TOKENS, QUICK])
def test_a_long_prompt_does_not_freeze_the_answers_beside_it(stage: Stage, hop: float) -> None:
    simulation = Simulation(pool(), stages=(stage, stage), hop=hop, jitter=0.1, noise=0.05)
    users(simulation, 4)
    simulation.submit(8.0, "long", prompt=2000, answer=1)
    second = 8
    while not simulation.tokens["long"]:
        simulation.run(until=(second := second + 1))
        assert second < 60
    (first,) = simulation.tokens["long"]
    names = [f"u{i}" for i in range(4)]
    before = percentile([gap for name in names for gap in simulation.gaps(name, 3.0, 8.0)], 0.95)
    beside = percentile([gap for name in names for gap in simulation.gaps(name, 8.0, first)], 0.95)
    assert beside < 2 * before


@pytest.mark.parametrize("stage", [Stage(), DEAR_TOKENS, CHEAP_TOKENS, QUICK])
def test_no_reader_waits_for_more_than_a_chunk_of_a_prompt_of_8000_tokens(stage: Stage) -> None:
    """D31: three streams; the longest pause of any, and every token of prompt and answers in its place."""
    simulation = Simulation(pool(context_length=16384), stages=(stage, stage))
    users(simulation, 3)
    simulation.submit(8.0, "long", prompt=8000, answer=20)
    simulation.run()
    first = simulation.tokens["long"][0]
    names = [f"u{i}" for i in range(3)]
    before = max(gap for name in names for gap in simulation.gaps(name, 3.0, 8.0))
    beside = max(gap for name in names for gap in simulation.gaps(name, 8.0, first))
    assert beside < 2.5 * before + 2 * stage.position * 8000  # whatever a chunk is, what is before it must be read
    for prompt, one in simulation.all.values():
        assert one.answer.ids == answer_to(prompt, len(one.answer.ids)) and one.answer.finish == "length"


def test_with_nobody_reading_a_prompt_goes_as_fast_as_it_can() -> None:
    simulation = Simulation(pool())
    simulation.submit(0.0, "long", prompt=2000, answer=1)
    simulation.run()
    assert [len(step.tokens) for _, step in simulation.steps] == [256] * 7 + [208]
    assert min(simulation.busy) / simulation.now > 0.8  # both stages, several chunks in flight


def test_prompts_move_on_however_dear_they_are() -> None:
    simulation = Simulation(pool(smoothness=1.0), stages=(DEAR_TOKENS,) * 2)
    users(simulation, 8)
    simulation.submit(2.0, "long", prompt=200, answer=1)
    simulation.run(until=30.0)
    assert simulation.all["long"][1].answer.finish == "length"
