"""What a step costs, learnt while serving: seconds per step, per token of its rows, per token drafted.

The cost of a step is the time by which its result comes after the result before it (or after the moment it was sent,
when the pipe was empty). On a full pipe that is the slowest stage's time, on an empty one the whole round trip, over a
slow link the trip divided by the steps that share it: each time what one more token really delays.
"""

from typing import Final

FORGET: Final = 0.97  # weight of everything older, per step
MOST_TOKENS: Final = 64  # larger steps are prefill and follow another law
GUESSED_SHARE: Final = 0.15  # of a one-token step, per further token, until rows of several lengths were seen
FORGET_SIZE: Final = 0.9
FIRM: Final = 3.0  # steps: how firmly a size is thought to lie on the line
MOST_FACTOR: Final = 3.0  # a step that took longer met something else than its size
SPREAD: Final = 0.3  # tokens², variance of the row lengths seen that makes a slope trustworthy


class Average:
    """A moving average that starts at the first sample."""

    def __init__(self, forget: float = 0.9) -> None:
        self._forget = forget
        self.weight = self._sum = 0.0  # weight: of the samples that still count

    def observe(self, value: float, weight: float = 1.0) -> None:
        """One more sample."""
        self.weight = self._forget * self.weight + weight
        self._sum = self._forget * self._sum + weight * value

    @property
    def value(self) -> float:
        """The average; 0.0 before the first sample."""
        return self._sum / self.weight if self.weight else 0.0


class StepCost:
    """A straight line through recent steps, `fixed + per_token * tokens` in seconds, and what single sizes add to it.

    Least squares that forgets. Sizes have a factor of their own because kernels work in blocks: on one machine a row of
    four tokens cost a fifth more than one of three, and one of five hardly more than one of four.
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._factors: dict[int, Average] = {}

    def observe(self, tokens: int, seconds: float) -> None:
        """A step with rows of so many tokens together took so long."""
        if tokens > MOST_TOKENS:
            return
        if self.known:
            fixed, per_token = self.line()
            expected = max(fixed + per_token * tokens, 1e-9)
            self._factors.setdefault(tokens, Average(FORGET_SIZE)).observe(min(seconds / expected, MOST_FACTOR))
        self._weight = FORGET * self._weight + 1
        self._x = FORGET * self._x + tokens
        self._y = FORGET * self._y + seconds
        self._xx = FORGET * self._xx + tokens * tokens
        self._xy = FORGET * self._xy + tokens * seconds

    def of(self, tokens: int) -> float:
        """Seconds that a step of that many tokens is expected to take."""
        fixed, per_token = self.line()
        factor, straight = self._factors.get(tokens), fixed + per_token * tokens
        if factor is None:
            return straight
        return straight * (FIRM + factor.weight * factor.value) / (FIRM + factor.weight)

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
