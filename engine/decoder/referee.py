"""How does drafting pay, all in all? Decided by trying: tokens per second each way, measured in turns.

The cost model predicts what a window brings; it cannot see everything that drafting costs: a draft model on the cores
of a stage slows the stage, windows run ahead are computed for nothing, and steps of another size than the one before
cost a small model up to a fifth more. So once in a while, for each load, another way is tried for a few steps, and the
best one is kept. Drafts never change the text, so trying is free of risk.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

Way = Literal["none", "steady", "chance"]
"""none: no drafts; steady: windows of one length; chance: each window as long as its drafts are likely enough."""
LOOKUP_WAYS: Final[tuple[Way, ...]] = ("steady", "none")  # lookups know no chances
MODEL_WAYS: Final[tuple[Way, ...]] = ("steady", "none", "chance")
TRIAL_STEPS: Final = 12  # results of one trial
FIRST_ROUNDS: Final = 2  # trials of each way, before anything is decided
LEAST_REST: Final = 8  # trials of the best way before another is tried again
MOST_REST: Final = 64
FORGET: Final = 0.9  # weight of older trials of the same way
MARGIN: Final = 1.01  # drafting must bring at least that


@dataclass(slots=True)
class _Found:
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

    ways: tuple[Way, ...]  # in the order of their first trials
    found: dict[Way, _Found] = field(default_factory=dict[Way, _Found])
    way: Way = "steady"  # now
    best: Way = "steady"
    tried: int = 0  # trials of other ways than the best, since something was decided
    trials: int = 0
    rest: int = LEAST_REST
    until: int = 0  # trial after which another way is tried again
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def speed(self, way: Way) -> float:
        return self.found[way].speed if way in self.found else 0.0

    def end_trial(self) -> None:
        self.found.setdefault(self.way, _Found()).add(self.tokens, self.seconds)
        self.steps = self.tokens = 0
        self.seconds = 0.0
        self.trials += 1
        first = FIRST_ROUNDS * len(self.ways)
        if self.trials < first:
            self.way = self.ways[self.trials % len(self.ways)]
            return
        best: Way = max(self.ways, key=lambda way: self.speed(way) / (1.0 if way == "none" else MARGIN))
        if self.way != self.best or self.trials == first:  # a try of another way has ended
            self.rest = LEAST_REST if best != self.best else min(2 * self.rest, MOST_REST)
            self.until = self.trials + self.rest
        self.best = self.way = best
        if self.trials >= self.until:
            others: list[Way] = [way for way in self.ways if way != best]
            self.way = others[self.tried % len(others)]
            self.tried += 1


class Referee:
    """Says how to draft now; one opinion per load, because full stages leave no room for drafts."""

    def __init__(self) -> None:
        self.ways: tuple[Way, ...] = LOOKUP_WAYS  # of loads that were not met yet
        self._loads: dict[int, _Load] = {}
        self._load: _Load | None = None
        self._skip = 0

    def way(self, running: int) -> Way:
        """How sequences draft now, with so many of them running."""
        load = self._of(running)
        if load is not self._load:
            self._change(load)
        return load.way

    def observe(self, tokens: int, seconds: float, in_flight: int) -> None:
        """A step of decode rows alone brought so many tokens, so long after the result before it.

        `in_flight`: steps still under way; they were planned before any change of mind that this result causes.
        """
        if self._skip:
            self._skip -= 1
            return
        load = self._load
        if load is None:
            return
        load.steps += 1
        load.tokens += tokens
        load.seconds += seconds
        if load.steps >= TRIAL_STEPS:
            before = load.way
            load.end_trial()
            if load.way != before:
                self._skip = in_flight + 1

    def gain(self, running: int | None = None) -> float:
        """Measured speed with drafts, the better way, relative to without, at that load or the present one.

        0.0: not both were tried.
        """
        load = self._load if running is None else self._of(running)
        if load is None or not load.speed("none"):
            return 0.0
        return max(load.speed(way) for way in load.ways if way != "none") / load.speed("none")

    def _of(self, running: int) -> _Load:
        return self._loads.setdefault(max(running - 1, 0).bit_length(), _Load(self.ways))

    def _change(self, load: _Load) -> None:
        """What was under way belongs to the load before."""
        self._load = load
        self._skip = 2
        load.steps = load.tokens = 0
        load.seconds = 0.0
