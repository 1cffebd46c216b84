"""What a step costs, learnt while serving: seconds per step, per token of its rows, per token drafted.

The cost of a step is the time by which its result comes after the result before it (or after the moment it was sent,
when the pipe was empty). On a full pipe that is the slowest stage's time, on an empty one the whole round trip, over a
slow link the trip divided by the steps that share it: each time what one more token really delays.
"""

from typing import Final

FORGET: Final = 0.97  # weight of everything older, per step
MOST_TOKENS: Final = 64  # larger steps are prefill and follow another law
GUESSED_SHARE: Final = 0.15  # of a one-token step, per further token, until rows of several lengths were seen
SPREAD: Final = 0.3  # tokens², variance of the row lengths seen that makes a slope trustworthy


class StepCost:
    """A straight line through recent steps: `fixed + per_token * tokens`, in seconds. Least squares that forgets."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A step with rows of so many tokens together took so long."""
        if tokens > MOST_TOKENS:
            return
        self._weight = FORGET * self._weight + 1
        self._x = FORGET * self._x + tokens
        self._y = FORGET * self._y + seconds
        self._xx = FORGET * self._xx + tokens * tokens
        self._xy = FORGET * self._xy + tokens * seconds

    @property
    def known(self) -> bool:
        """Whether any step was seen."""
        return self._weight > 0

    def line(self) -> tuple[float, float]:
        """(fixed, per_token) in seconds; zeros before the first step. Neither is ever negative."""
        if not self._weight:
            return 0.0, 0.0
        x, y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - x * x
        guess = y * GUESSED_SHARE / (1 - GUESSED_SHARE + GUESSED_SHARE * x)
        slope = (self._xy / self._weight - x * y) / variance if variance > 1e-9 else guess
        trust = variance / (variance + SPREAD)
        slope = min(max(trust * slope + (1 - trust) * guess, 0.0), y / x)
        return y - slope * x, slope


class Average:
    """A moving average that starts at the first sample."""

    def __init__(self, forget: float = 0.9) -> None:
        self._forget = forget
        self._weight = self._sum = 0.0

    def observe(self, value: float, weight: float = 1.0) -> None:
        """One more sample."""
        self._weight = self._forget * self._weight + weight
        self._sum = self._forget * self._sum + weight * value

    @property
    def value(self) -> float:
        """The average; 0.0 before the first sample."""
        return self._sum / self._weight if self._weight else 0.0
