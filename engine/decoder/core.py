"""The decoder without I/O: requests and step results in, steps and text out.

The life of a request: `submit` > waits > `next_step` admits it (slot, blocks) and sends its prompt in chunks >
`drafting` proposes what may follow > `result` accepts tokens > … > a rule ends it > its blocks are free. `lose_epoch`
makes every running sequence start again from prompt + accepted tokens, so a lost worker costs time, never text.
"""

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from engine.contract.drafts import Draft, DraftRequest
from engine.contract.ids import RequestId, StepNumber
from engine.contract.messages import ROW_COLUMNS, IntArray, Rows
from engine.contract.side import Logprobs, RowSide
from engine.decoder.answer import Delta
from engine.decoder.batching import RowPlan, StepLimits, plan_step
from engine.decoder.drafting import DraftModelAccess, DraftPlanner
from engine.decoder.sequence import Sequence
from engine.decoder.sides import build_sides
from engine.decoder.tables import BlockTables, PrefixFigures
from engine.decoder.verification import verify
from engine.kv.blocks import blocks_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the pipeline of this epoch can do: the intersection of its stages' capabilities."""

    blocks: int  # 0: the pipeline keeps no blocks
    slots: int  # sequences that may run at once
    limits: StepLimits


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step to publish now."""

    number: StepNumber
    rows: Rows
    tokens: IntArray  # int32 (tokens of all rows,)
    sides: tuple[tuple[RowSide, ...], ...] = ()  # for the last stage, one group per frame


@dataclass(frozen=True, slots=True)
class Flight:
    """A step on its way."""

    plans: list[RowPlan]
    sent: float  # seconds, on the decoder's clock
    tokens: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What one result brought to one request."""

    sequence: Sequence
    delta: Delta


class DecoderCore:
    """All sequences of one decoder and the bookkeeping of one epoch."""

    def __init__(self) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.flights: dict[StepNumber, Flight] = {}
        self.capacity: Capacity | None = None
        self.speculation = DraftPlanner()
        self._figures = PrefixFigures()
        self.tables = BlockTables(0, 0, self._figures)
        self.preemptions = 0
        self._free_slots: list[int] = []
        self._next_number = StepNumber(0)
        self._last_result = 0.0

    # -- requests

    def submit(self, sequence: Sequence) -> None:
        """Queue a request behind those already waiting."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence (finished, cancelled, failed). Steps in flight for it are ignored when they return."""
        if sequence in self.running:
            self._leave(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.tables.release(sequence)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1

    # -- epochs

    def open_epoch(self, capacity: Capacity) -> None:
        """Start with empty block tables on a pipeline of that capacity."""
        self.capacity = capacity
        self.tables = BlockTables(capacity.blocks, capacity.limits.block_size, self._figures)
        self._free_slots = list(range(capacity.slots - 1, -1, -1))
        self._next_number = StepNumber(0)
        self.flights.clear()

    def lose_epoch(self) -> None:
        """Everything in flight and every cache is gone: running sequences go back, in order, to be replayed first."""
        for sequence in reversed(self.running):
            sequence.forget()
            sequence.idle_losses += 1
            self.waiting.appendleft(sequence)
        self.running.clear()
        self.flights.clear()
        self.capacity = None

    # -- steps

    def fits(self, limit: int) -> bool:
        """Whether a sequence of `limit` tokens can ever be admitted to the present pipeline."""
        capacity = self.capacity
        if capacity is None or not capacity.limits.block_size:
            return True
        return blocks_for(limit, capacity.limits.block_size) <= capacity.blocks

    def next_step(self, now: float) -> PlannedStep | None:
        """The next step to publish, or None: the pipe is full, or no sequence has work."""
        capacity = self.capacity
        if capacity is None or len(self.flights) >= capacity.limits.steps_in_flight:
            return None
        self._preempt(self.tables.grow(self.running))
        self._admit(now)
        plans = plan_step(self.running, capacity.limits)
        if not plans:
            return None
        number = self._next_number
        self._next_number = StepNumber(number + 1)
        limits = capacity.limits
        rows, sides = build_rows(plans, limits.block_size), build_sides(plans, limits.max_bytes)
        step = PlannedStep(number, rows, build_tokens(plans), sides)
        for plan in plans:
            self._sent(plan, number)
        self.flights[number] = Flight(plans, now, len(step.tokens))
        return step

    def _sent(self, plan: RowPlan, number: StepNumber) -> None:
        sequence = plan.sequence
        sequence.drafts.sent += max(plan.start + plan.fresh - max(len(sequence.tokens), sequence.sent), 0)
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
        return self.speculation.requests(self.running, self.capacity.limits, model)

    def drafted(self, requests: Items[DraftRequest], drafts: Items[Draft], seconds: float) -> None:
        """The draft model's answer to `draft`, and how long it took."""
        if self.capacity is not None:
            waited = seconds * max(1 - len(self.flights) / self.capacity.limits.steps_in_flight, 0.0)
            self.speculation.observe_drafts(max(request.count for request in requests), waited)
        running = {sequence.id: sequence for sequence in self.running}
        for request, draft in zip(requests, drafts, strict=True):
            if (sequence := running.get(RequestId(request.key))) is not None:
                self.speculation.take(sequence, request, draft)

    def _preempt(self, sequences: Iterable[Sequence]) -> None:
        """They gave their blocks to older ones; they are the first to come back."""
        for sequence in sequences:
            self._leave(sequence)
            sequence.forget()
            self.waiting.appendleft(sequence)
            self.preemptions += 1

    def _admit(self, now: float) -> None:
        """First come, first served: the head of the queue waits for its blocks, nobody overtakes it.

        Further choices of a request wait aside until the first one's prompt is read: they share its blocks.
        """
        reading = {s.request for s in self.running if not s.answering} if self.tables.shares else set[RequestId]()
        aside: list[Sequence] = []
        while self.waiting and self._free_slots:
            sequence = self.waiting[0]
            if sequence.request in reading:
                aside.append(self.waiting.popleft())
                continue
            if not self.tables.admit(sequence, len(self.running)):
                break
            self.waiting.popleft()
            reading.add(sequence.request)
            sequence.slot = self._free_slots.pop()
            sequence.admitted = sequence.admitted or now
            self.running.append(sequence)
        self.waiting.extendleft(reversed(aside))

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
        self.speculation.observe_step(flight.tokens, seconds)
        progress: list[Progress] = []
        found, at = tokens.tolist(), 0
        for plan in flight.plans:
            target, known, at = found[at : at + plan.picked], logprobs[at : at + plan.picked], at + plan.picked
            sequence = plan.sequence
            if sequence.slot < 0 or plan.branch != sequence.branch:
                continue  # removed or replayed meanwhile; behind a draft that failed
            if not target:  # a prompt chunk
                self._confirm(plan)
                continue
            verdict = verify(sequence.tail, target)
            delta = sequence.answer.accept(verdict.tokens, known)
            self.speculation.count(*sequence.take(verdict, delta))
            sequence.first_token = sequence.first_token or now
            self._confirm(plan)
            if delta.finish:
                self.remove(sequence)
            progress.append(Progress(sequence, delta))
        if all(plan.picked for plan in flight.plans):
            brought = sum(len(item.delta.ids) for item in progress)
            self.speculation.referee.observe(brought, seconds, len(self.flights))
        return progress

    def _confirm(self, plan: RowPlan) -> None:
        plan.sequence.confirm(plan.start + plan.fresh)
        self.tables.remember(plan.sequence)


def build_rows(plans: Iterable[RowPlan], block_size: int) -> Rows:
    """The columns of a step's rows."""
    plans = list(plans)
    table = np.zeros((len(plans), ROW_COLUMNS), np.int32)
    blocks: list[IntArray] = []
    for line, plan in zip(table, plans, strict=True):
        used = plan.sequence.blocks[: blocks_for(plan.start + plan.length, block_size)]
        line[:] = (plan.start, plan.length, plan.sequence.slot, plan.picked_start, plan.picked, len(used))
        blocks.append(used)
    return Rows(table, np.concatenate(blocks))


def build_tokens(plans: Iterable[RowPlan]) -> IntArray:
    """Token ids of all rows, dummies as 0, int32 (tokens,)."""
    flat: list[int] = []
    for plan in plans:
        flat += plan.sequence.stream(plan.start, plan.start + plan.fresh)
        flat += [0] * plan.dummies
    return np.array(flat, np.int32)
