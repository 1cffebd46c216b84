"""How long a step may take before it counts as lost, from how long steps took."""

from collections import deque
from typing import Final

WINDOW: Final = 64  # steps
PATIENCE: Final = 8.0  # times the slowest comparable step


class Pace:
    """Measures steps of one epoch, predicts the deadline of the next."""

    def __init__(self, *, floor: float, first: float) -> None:
        """`floor` and `first` (for the first steps, which may compile kernels) in seconds."""
        self._floor, self._first = floor, first
        self._seen: deque[tuple[int, float]] = deque(maxlen=WINDOW)

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of that many tokens took that long, from publish to result."""
        self._seen.append((tokens, seconds))

    def patience(self, tokens: int) -> float:
        """Seconds to wait for a step of that many tokens."""
        if not self._seen:
            return self._first
        slowest = max(seconds * max(1.0, tokens / seen) for seen, seconds in self._seen)
        return max(self._floor, PATIENCE * slowest)
