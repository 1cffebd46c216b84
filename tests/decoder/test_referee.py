"""Whether drafting pays is found out by trying it, at little cost."""

import random

import pytest

from engine.decoder.referee import MODEL_WAYS, Referee, Way


def serve(referee: Referee, speeds: tuple[float, ...], steps: int, *, running: int = 4, noise: float = 0.0) -> float:
    """Tokens per second of steps that take 1 s; `speeds`: tokens a step brings without drafts, steadily, by chance."""
    ways: tuple[Way, ...] = ("none", "steady", "chance")
    brings: dict[Way, float] = dict(zip(ways, speeds, strict=False))
    flying: list[Way] = [referee.way(running)] * 2
    rng, tokens, seconds = random.Random(steps), 0.0, 0.0
    for _ in range(steps):
        flying.append(referee.way(running))
        took = 1 + noise * rng.random()
        brought = brings[flying.pop(0)]
        referee.observe(brought, took, len(flying))  # type: ignore[arg-type]  fractions stand for averages
        tokens, seconds = tokens + brought, seconds + took
    return tokens / seconds


@pytest.mark.parametrize("loss", [0.5, 0.8, 0.9, 0.95])
def test_drafting_that_costs_is_left_off_nearly_always(loss: float) -> None:
    assert serve(Referee(), (4.0, 4.0 * loss), 2000) > 0.97 * 4.0


@pytest.mark.parametrize("gain", [1.1, 1.5, 3.0])
def test_drafting_that_pays_is_kept_on_nearly_always(gain: float) -> None:
    assert serve(Referee(), (4.0, 4.0 * gain), 2000) > 0.96 * 4.0 * gain


def test_a_machine_that_jumps_in_speed_is_judged_right_in_the_end() -> None:
    referee = Referee()
    assert serve(referee, (4.0, 3.2), 4000, noise=0.7) > 0.95 * 4.0 / 1.35
    assert referee.gain(4) == pytest.approx(0.8, abs=0.1)


def test_a_change_of_the_world_is_noticed() -> None:
    referee = Referee()
    serve(referee, (4.0, 2.0), 1000)
    serve(referee, (4.0, 8.0), 1500)
    assert serve(referee, (4.0, 8.0), 500) > 7.5


def test_loads_are_judged_apart() -> None:
    referee = Referee()
    serve(referee, (1.0, 2.0), 500, running=1)
    serve(referee, (8.0, 6.0), 500, running=8)
    assert referee.gain(1) == pytest.approx(2.0, abs=0.3)
    assert referee.gain(8) == pytest.approx(0.75, abs=0.1)
    assert referee.gain(2) == 0.0


def test_results_planned_before_a_change_of_mind_do_not_count_for_the_new_way() -> None:
    referee = Referee()
    serve(referee, (4.0, 2.0), 48 + 20)
    assert referee.gain(4) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("speeds", [(4.0, 5.0, 6.0), (4.0, 6.0, 5.0), (6.0, 4.0, 5.0), (4.0, 4.0, 4.2)])
def test_the_best_of_three_ways_is_kept(speeds: tuple[float, ...]) -> None:
    referee = Referee()
    referee.ways = MODEL_WAYS
    serve(referee, speeds, 500)
    assert serve(referee, speeds, 2000) > 0.97 * max(speeds)
    assert referee.gain(4) == pytest.approx(max(speeds[1:]) / speeds[0], rel=0.02)


def test_a_way_that_has_become_the_best_is_found_again() -> None:
    referee = Referee()
    referee.ways = MODEL_WAYS
    serve(referee, (4.0, 6.0, 5.0), 1000)
    serve(referee, (4.0, 6.0, 9.0), 2500)
    assert serve(referee, (4.0, 6.0, 9.0), 1000) > 8.6
