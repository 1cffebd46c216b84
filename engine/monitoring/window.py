"""Figures over the last few seconds."""

from collections import deque
from typing import Final

WINDOW_SECONDS: Final = 5.0


class Activity:
    """Seconds with something to do, since the start; told at every change, and now and then besides."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._active_since: float | None = None

    def observe(self, now: float, *, active: bool) -> None:
        """Whether there is something to do at `now` (seconds)."""
        if self._active_since is not None:
            self.seconds += now - self._active_since
        self._active_since = now if active else None


class Rate:
    """How many of something a second, over a sliding window."""

    def __init__(self, window: float = WINDOW_SECONDS) -> None:
        self._window = window
        self._events: deque[tuple[float, int]] = deque()
        self._sum = 0
        self.total = 0  # since the start

    def add(self, count: int, now: float) -> None:
        """`count` of them happened at `now` (seconds)."""
        self._events.append((now, count))
        self._sum += count
        self.total += count
        self._trim(now)

    def per_second(self, now: float) -> float:
        """Rate at `now`."""
        self._trim(now)
        return self._sum / self._window

    def _trim(self, now: float) -> None:
        while self._events and self._events[0][0] < now - self._window:
            self._sum -= self._events.popleft()[1]
