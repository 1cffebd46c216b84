"""What the pipe takes: the loop, from publish to result without a queue, and the slowest place in it.

A pipe that works in order obeys `result = max(sent + loop, result before + slowest)`: of every step either the trip or
the time since the result before is what we want to know, and the other is longer. Which one, results alone often do
not say: evenly spaced steps look the same on a full pipe and on a long one. Two kinds are certain. A step sent on an
empty pipe made the loop. Of two steps sent closer together than the slowest place takes, the second came back when that
place was done with it (the packet pair of network measurement). `depth.py` makes both happen now and then.

Links delay a step whatever is in it, so the loop is that time for every stage, and one number for all links.
"""

from dataclasses import dataclass, replace
from typing import Final

from engine.decoder.steptime import FORGET, USUAL, Line, StepTime, Work

PAIR: Final = 0.8  # of the slowest place's time: steps sent closer together than that are a pair
LIKELY: Final = (0.8, 1.25)  # times what is predicted: a time between results that fits, pair or not
LIKELY_WEIGHT: Final = 0.3
LONGER_WEIGHT: Final = 0.2  # of a trip longer than a loop, when the time between results shows no queue


@dataclass(frozen=True, slots=True)
class PipeTimes:
    """What was measured, as values to plan with."""

    slowest: Line = USUAL
    loop: Line = USUAL

    def cycle(self, each: Work, steps: int) -> float:
        """Seconds until each of so many equal steps has come round once."""
        return max(self.loop.of(each), steps * self.slowest.of(each))


@dataclass(frozen=True, slots=True)
class Trip:
    """A step that came back; times in seconds on the decoder's clock."""

    work: Work
    sent: float
    returned: float
    alone: bool  # nothing else was under way when it was sent


class PipeClock:
    """Fits both from the trips of one pipeline."""

    def __init__(self, stages: int) -> None:
        self._stages = max(stages, 1)
        self._slowest = StepTime()
        self._paired = False
        self._links = self._links_weight = 0.0  # weighted sum of seconds
        self._before: Trip | None = None
        self._alone: Trip | None = None  # the latest of its kind before the first pair

    @property
    def known(self) -> bool:
        """Whether any step came back."""
        return self._slowest.known

    @property
    def times(self) -> PipeTimes:
        """What is known now; before the first pair links are free, and all stages are equal."""
        slowest = self._slowest.line()
        loop = slowest.scaled(self._stages)
        if self._links_weight:
            loop = replace(loop, fixed=max(loop.fixed + self.links, slowest.fixed))
        return PipeTimes(slowest, loop)

    @property
    def links(self) -> float:
        """Seconds of a loop that no stage computes; 0 before any loop was seen without a queue."""
        return self._links / self._links_weight if self._links_weight else 0.0

    def restart(self) -> None:
        """What comes next does not follow what was before: a new epoch."""
        self._before = None

    def observe(self, trip: Trip) -> None:
        """Take in a result; results come in the order of their steps."""
        before, self._before = self._before, trip
        seconds = trip.returned - trip.sent
        follows = before is not None and before.returned > trip.sent
        spacing = trip.returned - before.returned if before and follows else seconds
        if before and follows:
            self._observe_spacing(trip, trip.sent - before.sent, spacing)
        if not self._paired:
            self._slowest.observe(trip.work, seconds / self._stages)
            self._alone = trip if trip.alone else self._alone
            return
        if self._alone:
            self._observe_loop(self._alone.work, self._alone.returned - self._alone.sent, 1.0)
            self._alone = None
        times = self.times
        sure = trip.alone or seconds <= times.loop.of(trip.work)
        if sure or spacing > LIKELY[1] * times.slowest.of(trip.work):
            self._observe_loop(trip.work, seconds, 1.0 if sure else LONGER_WEIGHT)

    def _observe_spacing(self, trip: Trip, apart: float, spacing: float) -> None:
        """`apart`: seconds between this step and the one before when they were sent."""
        expected = self.times.slowest.of(trip.work)
        if apart < PAIR * expected:
            if not self._paired:
                self._paired, self._slowest = True, StepTime()
            self._slowest.observe(trip.work, spacing)
        elif self._paired and LIKELY[0] <= spacing / expected <= LIKELY[1]:
            self._slowest.observe(trip.work, spacing, LIKELY_WEIGHT)

    def _observe_loop(self, work: Work, seconds: float, weight: float) -> None:
        keep = 1 - (1 - FORGET) * weight
        links = seconds - self._stages * self._slowest.line().of(work)
        self._links = keep * self._links + weight * links
        self._links_weight = keep * self._links_weight + weight
