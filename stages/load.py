"""How busy a worker is, from the durations of its last steps."""

from collections import deque
from typing import Final

import numpy as np

from engine.monitoring.histogram import Buckets

STEP_BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds
WINDOW_SECONDS: Final = 5.0
STEPS_KEPT: Final = 4096  # the window at 1.2 ms a step


class Load:
    """A ring of (end, duration) of computed steps. Times in seconds of one monotonic clock."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._steps: deque[tuple[float, float]] = deque(maxlen=STEPS_KEPT)
        self.computed = 0  # since the start
        self.busy_seconds = 0.0  # since the start
        self.step_seconds = Buckets(STEP_BOUNDS)

    def add(self, end: float, duration: float) -> None:
        """A step was computed."""
        self._steps.append((end, duration))
        self.computed += 1
        self.busy_seconds += duration
        self.step_seconds.observe(duration)

    def busy_share(self, now: float) -> float:
        """Share of the last window spent computing, 0 to 1."""
        begin = max(now - WINDOW_SECONDS, self._started)
        busy = sum(end - max(end - duration, begin) for end, duration in self._steps if end > begin)
        return min(busy / max(now - begin, 1e-9), 1.0)

    def step_ms(self, now: float) -> tuple[float, float]:
        """Median and 95th percentile of a step in the last window, milliseconds; zeros when there was none."""
        recent = [duration for end, duration in self._steps if end > now - WINDOW_SECONDS]
        if not recent:
            return 0.0, 0.0
        p50, p95 = (np.percentile(recent, (50, 95)) * 1e3).tolist()
        return p50, p95
