"""How busy a worker is: figures of its last seconds."""

from collections import deque
from typing import Final

import numpy as np

WINDOW_SECONDS: Final = 5.0
MAX_STEPS: Final = 4096


class Load:
    """Durations of recent steps."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque(maxlen=MAX_STEPS)  # end, duration in seconds
        self.steps = 0
        self.refused = 0

    def observe(self, started: float, ended: float) -> None:
        """A step was computed between these moments (seconds)."""
        self._steps.append((ended, ended - started))
        self.steps += 1

    def busy_share(self, now: float) -> float:
        """Share of the last seconds spent computing, 0 to 1."""
        since = now - WINDOW_SECONDS
        busy = sum(min(duration, end - since) for end, duration in self._steps if end > since)
        return min(busy / WINDOW_SECONDS, 1.0)

    def percentiles(self) -> tuple[float, float]:
        """Median and 95th percentile of the recent steps in ms; 0 when there are none."""
        if not self._steps:
            return 0.0, 0.0
        p50, p95 = np.percentile([duration * 1e3 for _, duration in self._steps], [50, 95]).tolist()
        return round(p50, 3), round(p95, 3)
