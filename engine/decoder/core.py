"""The decoder without I/O: requests and step results in, steps and text out.

The life of a request: `submit` > waits > `next_step` admits it (slot, blocks, what of its prompt they hold already) and
sends the rest of its prompt in chunks > `drafting` proposes what may follow > `result` accepts tokens and makes full
blocks known to others > … > a rule ends it > its blocks are cached or free. When blocks run out, the youngest goes back
to wait (preemption); `lose_epoch` does that to all. Either starts again from prompt + accepted tokens, so both cost
time, never text.
"""

from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass

from engine.contract.control import PrefixCache
from engine.contract.copies import SlotCopy
from engine.contract.drafts import Draft, DraftRequest
from engine.contract.ids import RequestId, StepNumber
from engine.contract.messages import IntArray, Rows
from engine.contract.side import Logprobs, RowSide
from engine.decoder.answer import Delta
from engine.decoder.batching import RowPlan
from engine.decoder.drafting import Conditions, DraftModelAccess, DraftPlanner
from engine.decoder.pipeclock import Trip
from engine.decoder.rows import build_rows, build_tokens
from engine.decoder.schedule import Schedule
from engine.decoder.sequence import Sequence
from engine.decoder.sides import build_sides
from engine.decoder.steptime import Work
from engine.decoder.tables import CacheTables, Capacity, ReuseCount, seniority
from engine.decoder.verification import verify
from engine.decoder.waiting import cleared, next_waiting
from engine.kv.blocks import BlockPool, blocks_for
from engine.monitoring.window import Activity


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step to publish now."""

    number: StepNumber
    rows: Rows
    tokens: IntArray  # int32 (tokens of all rows,)
    sides: tuple[tuple[RowSide, ...], ...] = ()  # for the last stage, one group per frame
    copies: tuple[SlotCopy, ...] = ()  # to be made before the rows


@dataclass(frozen=True, slots=True)
class Flight:
    """A step on its way."""

    plans: list[RowPlan]
    sent: float  # seconds, on the decoder's clock
    work: Work
    alone: bool  # nothing else was under way


@dataclass(frozen=True, slots=True)
class Progress:
    """What one result brought to one request."""

    sequence: Sequence
    delta: Delta
    failed: str = ""  # why its answer cannot go on; "" as usual


class DecoderCore:
    """All sequences of one decoder and the bookkeeping of one epoch."""

    def __init__(self) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.flights: dict[StepNumber, Flight] = {}
        self.capacity: Capacity | None = None
        self.speculation = DraftPlanner()
        self.tables = CacheTables()
        self.preemptions = 0
        self._reuse = ReuseCount()
        self._serial = 0
        self._next_number = StepNumber(0)
        self._last_result = 0.0
        self.schedule = Schedule()
        self.activity = Activity()

    @property
    def blocks(self) -> BlockPool:
        """Of the present epoch, or of the last one."""
        return self.tables.pool

    def prefix_cache(self) -> PrefixCache:
        """What sequences found computed already."""
        return self.tables.figures(self._reuse)

    # -- requests

    def submit(self, sequence: Sequence) -> None:
        """Queue a request behind those already waiting."""
        self._serial += 1
        sequence.serial = self._serial
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence (finished, cancelled, failed). Steps in flight for it are ignored when they return."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.tables.release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    # -- epochs

    def open_epoch(self, capacity: Capacity) -> None:
        """Start with empty block tables on a pipeline of that capacity."""
        self.capacity = capacity
        self.tables = CacheTables.of(capacity)
        self._next_number = StepNumber(0)
        self.schedule.open(capacity.limits, capacity.stages, adaptive=capacity.adaptive)
        self.flights.clear()

    def lose_epoch(self) -> None:
        """Everything in flight and every cache is gone: running sequences go back, in order, to be replayed first."""
        for sequence in reversed(self.running):
            sequence.forget()
            self.waiting.appendleft(sequence)
        self.running.clear()
        self.flights.clear()
        self.capacity = None

    # -- steps

    @property
    def context(self) -> int:
        """Tokens that a sequence may have in the present pipeline; 0 while there is none."""
        return 0 if self.capacity is None else self.capacity.limits.context_length

    def fits(self, limit: int) -> bool:
        """Whether a sequence of `limit` tokens can ever be admitted to the present pipeline."""
        capacity = self.capacity
        if capacity is None or not capacity.limits.block_size:
            return True
        return blocks_for(limit, capacity.limits.block_size) <= capacity.blocks

    def next_step(self, now: float) -> PlannedStep | None:
        """The next step to publish, or None: the pipe is full, or no sequence has work."""
        self.activity.observe(now, active=bool(self.running or self.waiting))
        capacity, flying = self.capacity, len(self.flights)
        if capacity is None or flying >= self.schedule.allowed:
            return None
        self._admit(now)
        plans = self._plan(flying)
        if not plans:
            return None
        number = self._next_number
        self._next_number = StepNumber(number + 1)
        limits = capacity.limits
        rows, sides = build_rows(plans, limits.block_size), build_sides(plans, limits.max_bytes)
        step = PlannedStep(number, rows, build_tokens(plans), sides, self.tables.slots.take_copies())
        for plan in plans:
            self._sent(plan, number)
        work = Work(step.rows.count, len(step.tokens), sum(plan.start + plan.length for plan in plans))
        self.flights[number] = Flight(plans, now, work, alone=not flying)
        return step

    def _sent(self, plan: RowPlan, number: StepNumber) -> None:
        sequence = plan.sequence
        sequence.sent = plan.start + plan.fresh
        sequence.last_step = number
        if plan.picked:
            sequence.flying += 1
        if sequence.sent == sequence.length and sequence.drafting == "decided":
            sequence.drafting = "open"  # the window behind this one

    def draft(self, model: DraftModelAccess) -> list[DraftRequest]:
        """What to ask the draft model for now, if it is free; drafts that need no model are taken at once."""
        if self.capacity is None:
            return []
        times, measured = self.schedule.times, self.schedule.measured
        now = Conditions(self.schedule.limits, times, measured, model, self.capacity.draft_core)
        return self.speculation.requests(self.running, now)

    def drafted(self, requests: Items[DraftRequest], drafts: Items[Draft], seconds: float) -> None:
        """The draft model's answer to `draft`, and how long it took."""
        if self.capacity is not None:
            idle = max(1 - len(self.flights) / self.schedule.limits.steps_in_flight, 0.0)
            self.speculation.observe_drafts(requests, drafts, seconds, idle)
        running = {sequence.id: sequence for sequence in self.running}
        for request, draft in zip(requests, drafts, strict=True):
            if (sequence := running.get(RequestId(request.key))) is not None:
                self.speculation.take(sequence, request, draft)

    def waits_for(self) -> str:
        """What waiting requests wait for, in words."""
        if self.capacity is None:
            return "a complete pipeline"
        return "cache blocks" if self.tables.slots.free else f"one of {self.capacity.slots} places in the pipeline"

    def _next_waiting(self, now: float) -> Sequence | None:
        """In the order of `next_waiting`; who shares a beginning that is being read lets others go first."""
        able = [one for one in cleared(self.waiting, self.running) if not self.tables.waits(one, self.running)]
        return next_waiting(able, now) if able else None

    def _admit(self, now: float) -> None:
        """While there are slots: whose turn it is waits for its blocks, and nobody overtakes it."""
        while self.tables.slots.free and (sequence := self._next_waiting(now)) is not None:
            found = self.tables.admit(sequence, self.running)
            if found is None:
                return
            self.waiting.remove(sequence)
            self._reuse.add(found)
            sequence.cached = found if sequence.admitted is None else min(sequence.cached, found)
            sequence.admitted = now if sequence.admitted is None else sequence.admitted
            sequence.lead = None
            self.running.append(sequence)

    def _plan(self, flying: int) -> list[RowPlan]:
        """Rows that have their blocks. Each round without any has preempted somebody, so there is an end."""
        while plans := self.schedule.plan(self.running, flying):
            for plan in sorted(plans, key=lambda plan: seniority(plan.sequence), reverse=True):
                self._provide(plan)
            if granted := [plan for plan in plans if plan.sequence.slot >= 0]:
                return granted
        return []

    def _provide(self, plan: RowPlan) -> None:
        """Blocks for a row. The youngest pays, this one if need be; the oldest always has its way, and so an end."""
        sequence = plan.sequence
        while sequence.slot >= 0 and not self.tables.grow(sequence, plan.start + plan.length):
            self._preempt(min(self.running, key=seniority))

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the front of the queue; later it is replayed like after a lost epoch."""
        self.running.remove(sequence)
        self.tables.release(sequence)
        sequence.rewind()
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def result(
        self, number: StepNumber, tokens: IntArray, now: float, logprobs: Items[Logprobs | None] = ()
    ) -> list[Progress]:
        """Accept a step's tokens, int32 (picked positions,); `logprobs` of as many positions, or none at all.

        Raises KeyError for a step that is not in flight, ValueError for a wrong number of tokens.
        """
        flight = self.flights.pop(number)
        if len(tokens) != sum(plan.picked for plan in flight.plans) or len(logprobs) not in (0, len(tokens)):
            raise ValueError(f"step {number} brought {len(tokens)} tokens")
        seconds, self._last_result = now - max(flight.sent, self._last_result), now
        self.schedule.returned(Trip(flight.work, flight.sent, now, flight.alone), self.running, len(self.flights))
        progress: list[Progress] = []
        found, at = tokens.tolist(), 0
        for plan in flight.plans:
            target, known, at = found[at : at + plan.picked], logprobs[at : at + plan.picked], at + plan.picked
            sequence, end = plan.sequence, plan.start + plan.fresh
            if sequence.slot < 0 or plan.branch != sequence.branch:
                continue  # removed or preempted meanwhile; behind a draft that failed
            if not target:  # a prompt chunk
                self.tables.confirm(sequence, end)
                continue
            verdict = verify(sequence.tail, target)
            delta = sequence.answer.accept(verdict.tokens, known)
            accepted, checked = sequence.take(verdict, delta)
            self.speculation.count(sequence, plan.picked - 1, accepted, checked, len(delta.ids))
            self.tables.confirm(sequence, end)
            sequence.first_token = sequence.first_token or now
            failed = sequence.constraint.error if sequence.constraint is not None else ""
            if delta.finish or failed:
                self.remove(sequence)
            progress.append(Progress(sequence, delta, failed))
        if all(plan.picked for plan in flight.plans) and all(s.drafts.adapts for s in self.running):
            brought = sum(len(item.delta.ids) for item in progress)
            self.speculation.referee.observe(brought, seconds, len(self.flights))
        return progress
