"""The scheduler's policy in one place: measures, decides how deep the pipe is kept, plans steps."""

from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Final

from engine.contract.control import Scheduling
from engine.decoder.batching import RowPlan, StepLimits, budget, plan_step, work_of
from engine.decoder.depth import Depth, Load
from engine.decoder.pipeclock import PipeClock, PipeTimes, Trip
from engine.decoder.sequence import Sequence
from engine.decoder.steptime import Work

FAR: Final = 0.5  # of the slowest place's time: with shorter links one step per stage fills the pipe
WINDOWS_AHEAD: Final = 4  # of one sequence that drafts: further ones seldom hold
CLOSED: Final = StepLimits(
    steps_in_flight=1,
    smoothness=1.0,
    prefill_tokens=1,
    max_tokens=0,
    min_row_tokens=1,
    context_length=1,
    block_size=0,
    max_bytes=0,
    hidden_size=1,
)


class Schedule:
    """Measurements outlive an epoch: the next one mostly runs on the same machines."""

    def __init__(self) -> None:
        self._limits = CLOSED
        self._shape: tuple[int, int] = (0, 0)  # stages, and the depth that was told; 0: none was
        self._clock = PipeClock(1)
        self._depth = Depth(1, fixed=True)

    def open(self, limits: StepLimits, stages: int, *, adaptive: bool) -> None:
        """A new epoch. Not `adaptive`: as many steps in flight as the limits say."""
        shape = (stages, 0 if adaptive else limits.steps_in_flight)
        if shape != self._shape:
            self._shape = shape
            self._clock = PipeClock(stages)
            self._depth = Depth(stages if adaptive else limits.steps_in_flight, fixed=not adaptive)
        self._clock.restart()
        self._depth.restart()
        self._limits = limits

    @property
    def limits(self) -> StepLimits:
        """What a step may hold, at the present depth."""
        return self._with(self._depth.value)

    def _with(self, steps: int) -> StepLimits:
        if steps != self._limits.steps_in_flight:
            self._limits = replace(self._limits, steps_in_flight=steps)
        return self._limits

    @property
    def allowed(self) -> int:
        """Steps that may be in flight right now."""
        return self._depth.allowed

    @property
    def times(self) -> PipeTimes:
        """What steps take."""
        return self._clock.times

    @property
    def measured(self) -> bool:
        """Whether any step came back."""
        return self._clock.known

    def plan(self, running: Items[Sequence], flying: int) -> list[RowPlan]:
        """The next step beside `flying` others."""
        return plan_step(running, self._with(self._depth.allowed), self._clock.times, flying)

    def returned(self, trip: Trip, running: Items[Sequence], flying: int) -> None:
        """A step came back; `flying` others are still under way."""
        self._clock.observe(trip)
        far = self._clock.links > FAR * self._clock.times.slowest.of(trip.work)
        if self._depth.returned(flying, far=far) and running:
            self._depth.decide(self._clock.times, self._load(running))

    def _load(self, running: Items[Sequence]) -> Load:
        answering = [s for s in running if not s.prefilling]
        prompts = [s for s in running if s.prefilling]
        size = self.limits.prefill_tokens
        if not answering:
            chunks = sum(-(-s.behind // size) for s in prompts)
            longest = min(max(s.behind for s in prompts), size)
            return Load(Work(1, longest, max(s.sent for s in prompts) + longest), 1, chunks)
        ahead = sum(WINDOWS_AHEAD if s.drafts.sources else 1 for s in answering)
        return Load(work_of(answering, self.limits), len(answering), ahead + len(prompts))

    def figures(self, running: Items[Sequence]) -> Scheduling:
        """What is decided and why, for the decoder's heartbeat."""
        answering = [s for s in running if not s.prefilling]
        if not self._clock.known:
            return Scheduling(depth=self._depth.value)
        times, groups = self._clock.times, max(min(len(answering), self._depth.value), 1)
        each = work_of(answering, self.limits).over(groups)
        allowed = budget(answering, self.limits, times).step if answering else 0.0
        return Scheduling(
            depth=self._depth.value,
            step_ms=round(times.slowest.of(each) * 1e3, 3),
            loop_ms=round(times.loop.of(each) * 1e3, 3),
            budget_ms=round(allowed * 1e3, 3),
        )
