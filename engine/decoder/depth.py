"""How many steps to keep in flight: as many as bring the most tokens per second through the measured pipe (D8).

With d groups every sequence is served once per cycle, `max(loop, d * slowest)`, of steps with a d-th of the work each.
The shortest cycle is where d steps just fill the loop, loop over slowest rounded up, unless smaller steps cost too
much: each pays the fixed part again. Beyond one step per sequence, windows ahead and prompt chunks fill the pipe.
"""

from dataclasses import dataclass
from typing import Final, Literal

from engine.decoder.pipeclock import PipeTimes
from engine.decoder.steptime import Work

MOST_STEPS: Final = 32  # half of what a stage's inbox holds
AS_GOOD: Final = 1.03  # times the shortest cycle: fewer steps are larger, and leave room for what arrives
BETTER: Final = 1.05  # times: what a deeper pipe must bring
AGREEING: Final = 3  # decisions in a row before the depth changes
FIRST_PROBE: Final = 16  # results
PROBE_EVERY: Final = 128  # results; a probe delays half of the groups by a quarter of a loop: about 1 %


@dataclass(frozen=True, slots=True)
class Load:
    """What there is to send."""

    work: Work  # of all sequences that answer, one row each; with none of them, of one chunk
    shares: int  # into so many steps that work can be split
    most: int  # steps that could be under way, windows ahead and prompt chunks counted


def cycle_of(times: PipeTimes, load: Load, steps: int) -> float:
    """Seconds in which `load.work` comes round once, with so many steps in flight."""
    split = min(steps, load.shares)
    return times.cycle(load.work.over(split), steps) * split / steps


def best_depth(times: PipeTimes, load: Load, least: int) -> int:
    """The smallest number of steps, `least` or more, that is as good as any."""
    cycles = {d: cycle_of(times, load, d) for d in range(least, max(min(load.most, MOST_STEPS), least) + 1)}
    bound = AS_GOOD * min(cycles.values())
    return min(d for d, seconds in cycles.items() if seconds <= bound)


class Depth:
    """The present number, slow to change, and the probes that keep its measurements honest.

    A probe lets the pipe run half empty, then sends what it held back and one step more at once: the first trip has no
    queue in it, the next results come as fast as the slowest place allows.
    """

    def __init__(self, value: int, *, fixed: bool) -> None:
        self.value, self._least, self._fixed = value, value, fixed
        self._results = self._decided = 0
        self._direction = self._agreeing = 0
        self._probe: Literal["", "draining", "burst"] = ""

    @property
    def allowed(self) -> int:
        """Steps that may be in flight right now."""
        return {"": self.value, "draining": 0, "burst": self.value + 1}[self._probe]

    def restart(self) -> None:
        """Nothing is in flight any more."""
        self._probe = ""

    def returned(self, flying: int, *, far: bool) -> bool:
        """A result came and leaves `flying` steps under way. Says whether it is time to `decide`.

        Not `far`: links take so little of the loop that more than the least depth brings nothing, so nothing is probed.
        """
        if self._fixed or (not far and self.value == self._least and not self._probe):
            return False
        self._results += 1
        if self._probe == "burst":
            self._probe = ""
        elif self._results % PROBE_EVERY == FIRST_PROBE:
            self._probe = "draining"
        if self._probe == "draining" and flying <= (self.value - 1) // 2:
            self._probe = "burst"
        return self._results - self._decided >= max(self.value, self._least)

    def decide(self, times: PipeTimes, load: Load) -> None:
        """Move towards the best depth once several decisions agree on the direction."""
        self._decided = self._results
        best = best_depth(times, load, self._least)
        if best > self.value and cycle_of(times, load, self.value) < BETTER * cycle_of(times, load, best):
            best = self.value
        direction = (best > self.value) - (best < self.value)
        self._agreeing = self._agreeing + 1 if direction == self._direction else 1
        self._direction = direction
        if direction and self._agreeing >= AGREEING:
            self.value, self._agreeing = min(best, self.value + max(self.value // 2, 1)), 0
