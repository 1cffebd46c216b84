import pytest

from engine.decoder.depth import AGREEING, BETTER, MOST_STEPS, Depth, Load, best_depth, cycle_of
from engine.decoder.pipeclock import PipeClock, PipeTimes, Trip
from engine.decoder.steptime import Line, Work

STAGE = Line(0.015, 0.004, 0.0, 0.0)


def pipe(links: float, stages: int = 2) -> PipeTimes:
    return PipeTimes(STAGE, Line(stages * STAGE.fixed + links, stages * STAGE.row, 0.0, 0.0))


def load(rows: int) -> Load:
    return Load(Work(rows), rows, rows)


def decided(depth: Depth, times: PipeTimes, what: Load, decisions: int = 30) -> int:
    for _ in range(decisions):
        depth.decide(times, what)
    return depth.value


def test_without_links_there_are_as_many_steps_as_stages() -> None:
    assert best_depth(pipe(0.0), load(16), 2) == 2
    assert best_depth(pipe(0.0, stages=3), load(18), 3) == 3


def test_over_slow_links_there_are_more_and_more() -> None:
    depths = [best_depth(pipe(links), load(16), 2) for links in (0.0, 0.05, 0.15, 0.3)]
    assert depths == sorted(depths)
    assert depths[-1] > depths[0] + 2


def test_a_pipe_of_steps_that_cost_the_same_whatever_is_in_them_is_as_deep_as_its_loop_over_its_slowest_place() -> None:
    times = PipeTimes(Line(0.02, 0.0, 0.0, 0.0), Line(0.19, 0.0, 0.0, 0.0))
    assert best_depth(times, Load(Work(1), 1, 64), 1) == 10


def test_no_split_makes_the_cycle_longer() -> None:
    for links in (0.0, 0.03, 0.1, 0.4):
        for rows in (2, 5, 16, 64):
            best = best_depth(pipe(links), load(rows), 2)
            assert cycle_of(pipe(links), load(rows), best) <= 1.03 * cycle_of(pipe(links), load(rows), 2)


def test_there_are_never_more_steps_than_sequences_or_a_stage_can_hold() -> None:
    assert best_depth(pipe(5.0), load(7), 2) <= 7
    endless = PipeTimes(STAGE, Line(500.0, 0.0, 0.0, 0.0))
    assert MOST_STEPS - 1 <= best_depth(endless, Load(Work(1), 1, 5000), 2) <= MOST_STEPS


def test_the_depth_moves_once_decisions_agree_and_stays_when_little_is_won() -> None:
    depth = Depth(2, fixed=False)
    assert decided(depth, pipe(0.2), load(16), AGREEING - 1) == 2
    deep = decided(depth, pipe(0.2), load(16))
    best = best_depth(pipe(0.2), load(16), 2)
    assert cycle_of(pipe(0.2), load(16), deep) < BETTER * cycle_of(pipe(0.2), load(16), best)
    for _ in range(10):  # contradicting measurements in turns
        depth.decide(pipe(0.0), load(16))
        depth.decide(pipe(0.2), load(16))
    assert depth.value == deep
    assert decided(depth, pipe(0.0), load(16)) == 2


def test_a_fixed_depth_neither_moves_nor_probes() -> None:
    depth = Depth(3, fixed=True)
    assert not any(depth.returned(2, far=True) for _ in range(1000))
    assert depth.allowed == 3


def test_a_probe_lets_the_pipe_run_half_empty_and_sends_one_step_more() -> None:
    depth, flying, seen = Depth(4, fixed=False), 4, list[int]()
    for _ in range(30):
        flying -= 1
        depth.returned(flying, far=True)
        flying = max(flying, depth.allowed)
        seen.append(flying)
    assert min(seen) == 2
    assert max(seen) == 5
    assert seen[-1] == 4


def test_where_links_take_next_to_nothing_nothing_is_probed() -> None:
    depth = Depth(2, fixed=False)
    assert not any(depth.returned(1, far=False) for _ in range(1000))
    assert depth.allowed == 2


def test_a_deep_pipe_is_decided_on_again_when_its_links_become_short() -> None:
    depth = Depth(2, fixed=False)
    assert decided(depth, pipe(0.2), load(16)) > 2
    assert any(depth.returned(1, far=False) for _ in range(2 * depth.value))


def play(clock: PipeClock, *, depth: int, slowest: float, links: float, steps: int = 400) -> None:
    """Two equal stages of `slowest` seconds, `depth` steps always in flight, now and then sent together."""
    work, free, returns = Work(2, 4, 100), [0.0, 0.0], list[float]()
    now = 0.0
    trips: list[tuple[float, float]] = []
    for i in range(steps):
        if i >= depth:
            now = max(now, returns[i - depth + (1 if i % 40 == 0 and depth > 1 else 0)])
        moment = now + links / 2
        for stage in range(2):
            moment = free[stage] = max(moment, free[stage]) + slowest
        returns.append(moment + links / 2)
        trips.append((now, returns[-1]))
    for i, (sent, returned) in enumerate(trips):
        clock.observe(Trip(work, sent, returned, alone=i == 0 or returns[i - 1] <= sent))


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
@pytest.mark.parametrize("links", [0.0, 0.05, 0.2])
def test_loop_and_slowest_place_are_told_apart_at_any_depth(links: float, depth: int) -> None:
    clock = PipeClock(2)
    play(clock, depth=depth, slowest=0.02, links=links)
    work, times = Work(2, 4, 100), clock.times
    assert times.loop.of(work) == pytest.approx(0.04 + links, rel=0.25)
    if depth > 1:
        assert times.slowest.of(work) == pytest.approx(0.02, rel=0.25)
