"""How far a transfer is, how fast, and how long it will take; and a limit to how fast. Pure: the clock is given."""

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from engine.contract.sizes import show_size

WINDOW_SECONDS: Final = 10.0  # over which speed is measured
Clock = Callable[[], float]  # seconds, monotonic


class Progress:
    """Bytes of a transfer."""

    def __init__(self, total: int, clock: Clock) -> None:
        self.total, self.done, self.moved = total, 0, 0
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque([(clock(), 0)])  # when, and how much had moved

    def skip(self, count: int) -> None:
        """They were there already."""
        self.done += count

    def add(self, count: int) -> None:
        """They have been moved."""
        self.done += count
        self.moved += count
        now = self._clock()
        self._marks.append((now, self.moved))
        while len(self._marks) > 2 and self._marks[1][0] < now - WINDOW_SECONDS:
            self._marks.popleft()

    @property
    def speed(self) -> float:
        """Bytes per second of late; 0 before anything has moved."""
        (since, before), (until, after) = self._marks[0], self._marks[-1]
        return (after - before) / (until - since) if until > since else 0.0

    def line(self) -> str:
        """For people: share, size, speed, time left."""
        share = 100 * self.done // self.total if self.total else 100
        text = f"{share} % of {show_size(self.total)}"
        if self.speed and self.done < self.total:
            return f"{text}, {show_size(self.speed)}/s, {show_time((self.total - self.done) / self.speed)} left"
        return text


class Rate:
    """At most so many bytes in a second; 0: as fast as it goes. What was not used is not saved up."""

    def __init__(self, per_second: int, clock: Clock) -> None:
        self._per_second, self._clock = per_second, clock
        self._free = clock()  # when what was let through so far is used up

    def delay(self, count: int) -> float:
        """Let that many bytes through; how many seconds to wait before they go."""
        if not self._per_second:
            return 0.0
        now = self._clock()
        begin = max(self._free, now)
        self._free = begin + count / self._per_second
        return begin - now


def show_time(seconds: float) -> str:
    """A duration for people, rounded up."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
