from dataclasses import dataclass

from engine.distribution.progress import Progress, Rate, show_time

MIB = 1 << 20


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_left_follows_from_what_moved_of_late_not_from_what_was_there() -> None:
    clock = Clock()
    progress = Progress(100 * MIB, clock)
    progress.skip(50 * MIB)
    for _ in range(10):
        clock.now += 1
        progress.add(MIB)
    assert progress.line() == "60 % of 100.0 MiB, 1.0 MiB/s, 40 s left"
    for _ in range(15):  # twice as fast from here on
        clock.now += 1
        progress.add(2 * MIB)
    assert progress.line() == "90 % of 100.0 MiB, 2.0 MiB/s, 5 s left"


def test_nothing_is_said_of_speed_before_there_is_one_and_after_the_end() -> None:
    clock = Clock()
    progress = Progress(MIB, clock)
    assert progress.line() == "0 % of 1.0 MiB"
    clock.now += 1
    progress.add(MIB)
    assert progress.line() == "100 % of 1.0 MiB"
    assert Progress(0, clock).line() == "100 % of 0 B"


def test_a_limit_spreads_pieces_evenly_and_saves_nothing_up() -> None:
    clock = Clock()
    rate = Rate(1000, clock)
    assert [rate.delay(500) for _ in range(3)] == [0.0, 0.5, 1.0]
    clock.now += 60
    assert [rate.delay(500) for _ in range(2)] == [0.0, 0.5]


def test_no_limit_never_waits() -> None:
    assert [Rate(0, Clock()).delay(1 << 40) for _ in range(2)] == [0.0, 0.0]


def test_durations_for_people_are_rounded_up() -> None:
    assert [show_time(t) for t in (0.2, 59.5, 61, 7500)] == ["1 s", "1 min 0 s", "1 min 1 s", "2 h 5 min"]
