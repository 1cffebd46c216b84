"""Does drafting pay, all in all? Decided by trying: tokens per second with and without it, measured in turns.

The cost model (cost.py) predicts what a window brings; it cannot see everything that drafting costs: a draft model on
the cores of a stage slows the stage, windows run ahead are computed for nothing. So once in a while, for each load, the
other way is tried for a few steps, and the better one is kept. Drafts never change the text, so trying is free of risk.
"""

from dataclasses import dataclass, field
from typing import Final

TRIAL_STEPS: Final = 12  # results of one trial
FIRST_TRIALS: Final = 4  # in turns, before anything is decided
LEAST_REST: Final = 8  # trials of the better way before the other is tried again
MOST_REST: Final = 64
FORGET: Final = 0.6  # weight of older trials of the same way
MARGIN: Final = 1.01  # drafting must bring at least that


@dataclass(slots=True)
class _Way:
    """What one way brought, lately."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.tokens = FORGET * self.tokens + tokens
        self.seconds = FORGET * self.seconds + seconds

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class _Load:
    """One number of running sequences, about."""

    ways: tuple[_Way, _Way] = field(default_factory=lambda: (_Way(), _Way()))  # without drafts, with
    drafting: bool = True
    trials: int = 0
    rest: int = LEAST_REST
    until: int = FIRST_TRIALS  # trial after which the other way is tried again
    better: bool = True
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def end_trial(self) -> None:
        self.ways[self.drafting].add(self.tokens, self.seconds)
        self.steps = self.tokens = 0
        self.seconds = 0.0
        self.trials += 1
        if self.trials < FIRST_TRIALS:
            self.drafting = not self.drafting
            return
        better = self.ways[True].speed > MARGIN * self.ways[False].speed
        if self.drafting != self.better or self.trials == FIRST_TRIALS:  # a try of the other way has ended
            self.rest = LEAST_REST if better != self.better else min(2 * self.rest, MOST_REST)
            self.until = self.trials + self.rest
        self.better = better
        self.drafting = not better if self.trials >= self.until else better


class Referee:
    """Says whether to draft now; one opinion per load, because full stages leave no room for drafts."""

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}
        self._load = self._of(1)
        self._skip = 0

    def drafting(self, running: int) -> bool:
        """Whether sequences may draft now, with so many of them running."""
        load = self._of(running)
        if load is not self._load:
            self._change(load)
        return load.drafting

    def observe(self, tokens: int, seconds: float, in_flight: int) -> None:
        """A step of decode rows alone brought so many tokens, so long after the result before it.

        `in_flight`: steps still under way; they were planned before any change of mind that this result causes.
        """
        if self._skip:
            self._skip -= 1
            return
        load = self._load
        load.steps += 1
        load.tokens += tokens
        load.seconds += seconds
        if load.steps >= TRIAL_STEPS:
            before = load.drafting
            load.end_trial()
            if load.drafting != before:
                self._skip = in_flight + 1

    def gain(self, running: int | None = None) -> float:
        """Measured speed with drafts relative to without, at that load or the present one; 0.0: not both were tried."""
        without, with_drafts = (self._load if running is None else self._of(running)).ways
        return with_drafts.speed / without.speed if without.speed and with_drafts.speed else 0.0

    def _of(self, running: int) -> _Load:
        return self._loads.setdefault(max(running - 1, 0).bit_length(), _Load())

    def _change(self, load: _Load) -> None:
        """What was under way belongs to the load before."""
        self._load = load
        self._skip = 2
        load.steps = load.tokens = 0
        load.seconds = 0.0
