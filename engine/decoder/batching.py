"""Which rows make up the next step: a pure function of the sequences and the limits.

The running sequences are split into as many groups as there are steps in flight, so that every stage has one (D8).
Decode rows go first, prefill chunks fill up the step's budget; a prompt may have several chunks in flight.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

from engine.contract.messages import ROW_COLUMNS
from engine.decoder.blocks import blocks_for
from engine.decoder.sequence import Sequence


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


@dataclass(frozen=True, slots=True)
class RowPlan:
    """tokens[start : start + fresh] of a sequence, then `dummies` tokens whose results nobody wants."""

    sequence: Sequence
    start: int
    fresh: int
    dummies: int
    picked: bool  # the row reaches the last token: the next one is wanted

    @property
    def length(self) -> int:
        """Tokens of the row, dummies included."""
        return self.fresh + self.dummies


def plan_step(running: Items[Sequence], limits: StepLimits) -> list[RowPlan]:
    """Rows of the next step, oldest served first; empty when no sequence has work."""
    ready = sorted((s for s in running if s.remaining), key=lambda s: (s.remaining > 1, s.last_step))
    rows: list[RowPlan] = []
    share = -(-len(running) // limits.steps_in_flight)
    most = limits.max_tokens or limits.prefill_tokens + 2 * len(ready)
    tokens, size = 0, 0
    for sequence in ready[:share]:
        if tokens + limits.min_row_tokens > most:
            break
        room = min(limits.prefill_tokens, most) - tokens if sequence.remaining > 1 else 1
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

    No chunk leaves a tail shorter than the smallest row: it would need a dummy in the middle of the prompt.
    """
    start, fresh, least = sequence.sent, sequence.remaining, limits.min_row_tokens
    if fresh > room:
        fresh = room if sequence.remaining - room >= least else room - least + 1
        if fresh < least:
            return None
    picked = fresh == sequence.remaining
    short = max(least - fresh, 0)
    over = max(start + fresh + short - limits.context_length, 0)  # at the end of the context no dummy fits:
    start, fresh, short = start - over, fresh + over, short - over  # the row starts earlier instead
    return RowPlan(sequence, start, fresh, short, picked)


def row_bytes(row: RowPlan, limits: StepLimits) -> int:
    """What a row adds to a frame between two stages."""
    blocks = blocks_for(row.start + row.length, limits.block_size)
    return 4 * (ROW_COLUMNS + blocks + row.length * limits.hidden_size)


def fitting_tokens(sequence: Sequence, limits: StepLimits, left: int) -> int:
    """How many tokens of a sequence fit into `left` bytes of a frame."""
    fixed = 4 * (ROW_COLUMNS + blocks_for(len(sequence.tokens) + 1, limits.block_size))
    return max(left - fixed, 0) // (4 * limits.hidden_size)
