"""Which rows make up the next step: a pure function of the sequences and the limits.

The running sequences are split into as many groups as there are steps in flight, so that every stage has one (D8).
Decode and verify rows go first, prefill chunks fill up the step's budget; a prompt may have several chunks in flight,
an answer several windows of drafts.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Final

from engine.contract.messages import ROW_COLUMNS
from engine.decoder.sequence import Sequence
from engine.kv.blocks import blocks_for

MANY: Final = 1 << 20  # tokens: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """What one step may hold."""

    steps_in_flight: int
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


def plan_step(running: Items[Sequence], limits: StepLimits) -> list[RowPlan]:
    """Rows of the next step, oldest served first; empty when no sequence has work, or drafts are to be waited for.

    With fewer sequences than steps in flight a sequence may run ahead: its next window of drafts is sent before the
    results of the one before are there.
    """
    ready = sorted((s for s in running if s.ready), key=lambda s: (s.prefilling, s.last_step))
    share = limits.share(len(running))
    if len(ready) < share and any(s.awaits_drafts for s in running):
        return []  # a step of its own for whoever is early would cost as much as one for all
    if not ready and len(running) < limits.steps_in_flight:
        ready = sorted((s for s in running if s.ready_ahead), key=lambda s: s.last_step)
    return _fill(ready[:share], limits)


def _fill(sequences: Items[Sequence], limits: StepLimits) -> list[RowPlan]:
    rows: list[RowPlan] = []
    least, most = limits.min_row_tokens, limits.max_tokens or MANY
    decoding = sum(not s.prefilling for s in sequences)
    each = max(most // max(decoding, 1), least)  # drafts give way before anybody is left out
    tokens, size = 0, 0
    for sequence in sequences:
        if tokens + least > most:
            break
        room = min(limits.prefill_tokens, most) - tokens if sequence.prefilling else each
        row = plan_row(sequence, room, limits)
        if row is None:
            continue
        row_size = row_bytes(row, limits)
        if size + row_size > limits.max_bytes:
            row = plan_row(sequence, fitting_tokens(sequence, limits, limits.max_bytes - size), limits)
            if row is None or (row_size := row_bytes(row, limits)) + size > limits.max_bytes:
                continue
        rows.append(row)
        tokens, size = tokens + row.length, size + row_size
    return rows


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
