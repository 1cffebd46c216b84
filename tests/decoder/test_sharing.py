import random

import pytest

from engine.decoder.batching import SHORT, plan_step, row_bytes
from engine.decoder.pipeclock import PipeTimes
from engine.decoder.sequence import Sequence
from engine.decoder.sharing import budget_of, take_share
from engine.decoder.steptime import Line, Work
from tests.decoder.fakes import limits, sequence

STAGE = Line(0.02, 0.002, 0.001, 1e-6)
TIMES = PipeTimes(STAGE, STAGE.scaled(2))


def answering(name: str, length: int = 10, last_step: int = 0, drafts: int = 0) -> Sequence:
    one = sequence(name, prompt=length, max_tokens=100)
    one.sent, one.last_step, one.tail = length - 1, last_step, list(range(1, drafts + 1))
    return one


def share(weights: dict[str, float], *, groups: int, flying: int = 0, order: str = "") -> list[str]:
    ready = [answering(name, last_step=order.find(name)) for name in weights]
    seconds = {one.id: weights[one.id] for one in ready}
    return [one.id for one in take_share(ready, seconds, sum(weights.values()) / groups, groups - flying)]


def test_a_heavy_sequence_makes_a_group_of_its_own() -> None:
    assert share({"a": 1, "b": 1, "c": 1, "d": 1, "h": 4}, groups=2) == ["h"]
    assert sorted(share({"a": 1, "b": 1, "c": 1, "d": 1}, groups=2)) == ["a", "b"]


def test_the_longest_unserved_come_first_whatever_they_weigh() -> None:
    assert share({"a": 1, "b": 1, "c": 1, "d": 1}, groups=2, order="dcba") == ["d", "c"]


def test_an_overweight_group_leaves_a_sequence_to_the_next_step() -> None:
    ready = [answering(name, last_step=3) for name in "abc"]
    weights = {one.id: 1.0 for one in ready}
    assert len(take_share(ready, weights, share=2.0, steps=1)) == 2  # the other group has one


def test_nobody_is_left_over_for_a_few_tokens_of_context() -> None:
    ready = [answering(name, last_step=3) for name in "ab"]
    assert len(take_share(ready, {"a": 1.0, "b": 1.02}, share=2.0, steps=1)) == 2  # type: ignore[arg-type]
    assert len(take_share([*ready, answering("c", last_step=3)], dict.fromkeys("abc", 0.99), 2.0, 1)) == 2  # type: ignore[arg-type]


def test_drafts_count_as_work() -> None:
    running = [answering("drafts", drafts=16), *(answering(name) for name in "abcd")]
    rows = plan_step(running, limits(steps_in_flight=2, min_row_tokens=1), TIMES)
    assert [row.sequence.id for row in rows] == ["drafts"]


def test_a_chunk_beside_answers_makes_the_step_as_long_as_is_allowed_and_no_longer() -> None:
    running = [*(answering(name) for name in "abcd"), sequence("p", prompt=2000)]
    wide = limits(steps_in_flight=2, smoothness=1.5, context_length=4096, prefill_tokens=256, max_bytes=1 << 20)
    rows = plan_step(running, wide, TIMES)
    works = [Work(1, row.length, row.start + row.length) for row in rows]
    without, whole = sum(works[:-1], Work()), sum(works, Work())
    assert [row.sequence.id for row in rows][2:] == ["p"]
    assert STAGE.of(without) * 1.45 < STAGE.of(whole) <= STAGE.of(without) * 1.5


def test_the_time_of_slow_links_is_time_for_prompts_too() -> None:
    links = PipeTimes(STAGE, Line(0.24, 0.004, 0.002, 2e-6))
    near, far = (budget_of(times, Work(4, 8, 100), 4, 2, 1.5) for times in (TIMES, links))
    assert far.step > 3 * near.step


def test_every_step_takes_a_prompt_along_however_full_or_slow_it_is() -> None:
    running = [*(answering(str(i), drafts=16) for i in range(40)), sequence("p", prompt=100)]
    for changes in ({"smoothness": 1.0}, {"max_tokens": 64}, {"max_bytes": 20_000}, {"prefill_tokens": 8}):
        rows = plan_step(running, limits(steps_in_flight=1, **changes), TIMES)
        assert rows[-1].sequence.id == "p", changes
        assert rows[-1].fresh >= 2


def test_a_short_prompt_beside_answers_is_read_at_once_and_one_of_them_per_step() -> None:
    prompts = [sequence("p", prompt=SHORT), sequence("q", prompt=SHORT)]
    running = [*(answering(name) for name in "abcd"), *prompts]
    rows = plan_step(running, limits(steps_in_flight=2, smoothness=1.0, prefill_tokens=256), TIMES)
    assert [(row.sequence.id, row.fresh) for row in rows][2:] == [("p", SHORT)]
    longer = sequence("l", prompt=SHORT + 1)
    rows = plan_step([*running[:4], longer], limits(steps_in_flight=2, smoothness=1.0, prefill_tokens=256), TIMES)
    assert rows[-1].fresh < SHORT


@pytest.mark.parametrize("seed", range(200))
def test_whatever_the_mix_a_step_fits_into_a_frame_and_into_its_tokens(seed: int) -> None:
    rng = random.Random(seed)
    running = [answering(f"a{i}", rng.randint(2, 200), i, rng.randint(0, 16)) for i in range(rng.randint(0, 20))]
    running += [sequence(f"p{i}", prompt=rng.randint(2, 200)) for i in range(rng.randint(0 if running else 1, 6))]
    here = limits(
        steps_in_flight=rng.randint(1, 5),
        max_tokens=rng.choice([0, 32, 100]),
        max_bytes=rng.choice([500, 3000, 20_000]),
        min_row_tokens=rng.choice([1, 2]),
        smoothness=rng.choice([1.0, 1.6, 10.0]),
    )
    rows = plan_step(running, here, TIMES, rng.randint(0, here.steps_in_flight - 1))
    assert rows
    assert sum(row_bytes(row, here) for row in rows) <= here.max_bytes
    assert not here.max_tokens or sum(row.length for row in rows) <= here.max_tokens
    assert len({row.sequence.id for row in rows}) == len(rows)
    for row in rows:
        assert row.sequence.behind - row.fresh != 1 or here.min_row_tokens == 1 or not row.sequence.prefilling
