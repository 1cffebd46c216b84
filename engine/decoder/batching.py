"""Which rows make up the next step: a pure function of the sequences, the limits and what was measured.

The answering sequences are split into as many groups as there are steps in flight, of equal time (D8). Their rows go
first; chunks of prompts fill up what a step may hold, or may take while somebody reads an answer. A prompt may have
several chunks in flight, an answer several windows of drafts.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Final

from engine.contract.messages import ROW_COLUMNS
from engine.decoder.pipeclock import PipeTimes
from engine.decoder.sequence import Sequence
from engine.decoder.sharing import EVEN, Budget, budget_of, chunk_work, row_work, served_order, take_share
from engine.decoder.steptime import Work
from engine.kv.blocks import blocks_for

MANY: Final = 1 << 20  # tokens: no limit
LEAST_CHUNK: Final = 4  # prompt tokens that every step takes along, whatever it costs: prompts never starve
SHORT: Final = 64  # prompt tokens: so many left are read at once, one prompt per step; readers hardly notice one pause
NOT_MEASURED: Final = PipeTimes()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """What one step may hold."""

    steps_in_flight: int  # now
    smoothness: float  # times: how much longer steps may get by prompt chunks while somebody reads an answer
    prefill_tokens: int  # budget of one step, decode rows counted
    max_tokens: int  # of all rows of a step, dummies counted; 0: no limit
    min_row_tokens: int  # 2: one-token rows take another attention kernel (profile exact)
    context_length: int
    block_size: int  # 0: no blocks
    max_bytes: int  # of one frame between stages
    hidden_size: int

    def share(self, running: int) -> int:
        """Of so many running sequences, how many one step serves."""
        return -(-running // self.steps_in_flight)


@dataclass(frozen=True, slots=True)
class RowPlan:
    """`fresh` tokens of a sequence's stream from `start` on, then `dummies` whose results nobody wants."""

    sequence: Sequence
    start: int
    fresh: int
    dummies: int
    picked_start: int  # within the row
    picked: int  # positions whose next token is wanted: the last certain token and every draft behind it
    branch: int  # of the sequence when this was planned

    @property
    def length(self) -> int:
        """Tokens of the row, dummies included."""
        return self.fresh + self.dummies


def plan_step(
    running: Items[Sequence], limits: StepLimits, times: PipeTimes = NOT_MEASURED, flying: int = 0
) -> list[RowPlan]:
    """Rows of the next step beside `flying` others; empty when there is no work, or drafts are to be waited for.

    With fewer sequences than steps in flight a sequence may run ahead: its next window of drafts is sent before the
    results of the one before are there.
    """
    answering = [s for s in running if not s.prefilling]
    prompts = sorted((s for s in running if s.prefilling), key=served_order)
    left = limits.steps_in_flight - flying
    if not answering:
        return _fill((), _spread(prompts, limits, times, left), limits, _Pace(times, None))
    weights = {s.id: times.slowest.added(row_work(s, limits.min_row_tokens)) for s in answering}
    ready = [s for s in answering if s.ready]
    share = sum(weights.values()) / limits.steps_in_flight
    if sum(weights[s.id] for s in ready) * EVEN < share and any(s.awaits_drafts for s in answering):
        return []  # a step of its own for whoever is early would cost as much as one for all
    if not ready and not prompts and len(running) < limits.steps_in_flight:
        ready = sorted((s for s in answering if s.ready_ahead), key=served_order)[:1]
    group = take_share(ready, weights, share, left)
    return _fill(group, prompts, limits, _Pace(times, budget(answering, limits, times) if prompts else None))


def budget(answering: Items[Sequence], limits: StepLimits, times: PipeTimes) -> Budget:
    """What a step may take with prompt chunks in it, beside these answers."""
    return budget_of(times, work_of(answering, limits), len(answering), limits.steps_in_flight, limits.smoothness)


def work_of(answering: Items[Sequence], limits: StepLimits) -> Work:
    """A row of each."""
    works = [row_work(sequence, limits.min_row_tokens) for sequence in answering]
    return Work(len(works), sum(work.tokens for work in works), sum(work.context for work in works))


def _spread(prompts: Items[Sequence], limits: StepLimits, times: PipeTimes, left: int) -> list[Sequence]:
    """Nobody reads an answer: prompts go into all steps evenly, in chunks as large as they may be."""
    weights = {s.id: times.slowest.added(chunk_work(s, limits.prefill_tokens)) for s in prompts}
    return take_share(prompts, weights, sum(weights.values()) / limits.steps_in_flight, left)


@dataclass(frozen=True, slots=True)
class _Pace:
    times: PipeTimes
    budget: Budget | None  # None: nobody waits for the next token

    def room(self, there: Work, sequence: Sequence) -> int:
        """Tokens of a prompt that fit into the time of a step."""
        return MANY if self.budget is None else self.budget.tokens(self.times, there, sequence.sent)


@dataclass(slots=True)
class _Filling:
    """A step while rows are put into it."""

    limits: StepLimits
    rows: list[RowPlan] = field(default_factory=list[RowPlan])
    work: Work = field(default_factory=Work)
    tokens: int = 0
    size: int = 0  # bytes

    def add(self, sequence: Sequence, room: int, max_bytes: int) -> bool:
        """Put in a row of at most `room` tokens, if one fits."""
        row = plan_row(sequence, room, self.limits)
        if row and self.size + row_bytes(row, self.limits) > max_bytes:
            fitting = fitting_tokens(sequence, self.limits, max_bytes - self.size)
            row = plan_row(sequence, min(room, fitting), self.limits)
        if row is None or self.size + row_bytes(row, self.limits) > max_bytes:
            return False
        self.rows.append(row)
        self.work += Work(1, row.length, row.start + row.length)
        self.tokens, self.size = self.tokens + row.length, self.size + row_bytes(row, self.limits)
        return True


def _fill(answers: Items[Sequence], prompts: Items[Sequence], limits: StepLimits, pace: _Pace) -> list[RowPlan]:
    step = _Filling(limits)
    least, most = limits.min_row_tokens, limits.max_tokens or MANY
    chunk = max(LEAST_CHUNK, 2 * least)
    kept = chunk if prompts and most >= 2 * chunk else 0  # for the least chunk
    kept_bytes = 4 * (ROW_COLUMNS + blocks_for(limits.context_length, limits.block_size) + kept * limits.hidden_size)
    max_bytes = limits.max_bytes - (kept_bytes if kept and limits.max_bytes >= 2 * kept_bytes else 0)
    each = max((most - kept) // max(len(answers), 1), least)  # drafts give way before anybody is left out
    for sequence in answers:
        if step.tokens + least <= most - kept:
            step.add(sequence, each, max_bytes)
    started = False
    for sequence in prompts:
        room = min(min(limits.prefill_tokens, most) - step.tokens, pace.room(step.work, sequence))
        if started and room < least:
            break
        if not started:
            at_once = SHORT if sequence.behind <= SHORT else chunk
            room = max(room, min(at_once, limits.prefill_tokens, most - step.tokens))
        started |= step.add(sequence, room, limits.max_bytes)
    return step.rows


def plan_row(sequence: Sequence, room: int, limits: StepLimits) -> RowPlan | None:
    """The next row of a sequence with at most `room` fresh tokens; None when the room is too small to be useful.

    No prompt chunk leaves a tail shorter than the smallest row: it would need a dummy in the middle of the prompt.
    """
    start, least = sequence.sent, limits.min_row_tokens
    if sequence.prefilling:
        fresh = sequence.behind
        if fresh > room:
            fresh = room if sequence.behind - room >= least else room - least + 1
            if fresh < least:
                return None
    else:
        fresh = min(sequence.length - start, room)
        if fresh < 1:
            return None
    picked_from = min(max(len(sequence.tokens) - 1, start), start + fresh)
    short = max(least - fresh, 0)
    over = max(start + fresh + short - limits.context_length, 0)  # at the end of the context no dummy fits:
    start, fresh, short = start - over, fresh + over, short - over  # the row starts earlier instead
    picked = start + fresh - picked_from
    return RowPlan(sequence, start, fresh, short, picked_from - start if picked else 0, picked, sequence.branch)


def row_bytes(row: RowPlan, limits: StepLimits) -> int:
    """What a row adds to a frame between two stages."""
    blocks = blocks_for(row.start + row.length, limits.block_size)
    return 4 * (ROW_COLUMNS + blocks + row.length * limits.hidden_size)


def fitting_tokens(sequence: Sequence, limits: StepLimits, left: int) -> int:
    """How many tokens of a sequence fit into `left` bytes of a frame."""
    fixed = 4 * (ROW_COLUMNS + blocks_for(sequence.length + 1, limits.block_size))
    return max(left - fixed, 0) // (4 * limits.hidden_size)
