"""What goes straight to the last stage for a step: how the tokens of its rows are chosen. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from engine.contract.side import Masks, RowSide
from engine.decoder.batching import RowPlan

_FIXED_BYTES = 1024  # of one row's JSON, lists left out: every sampling field together stays below
_ID_BYTES = 8  # of one number in a list


def build_sides(plans: Iterable[RowPlan], max_bytes: int) -> tuple[tuple[RowSide, ...], ...]:
    """Of the rows that want more than the likeliest token: one group per frame of at most `max_bytes`."""
    groups: list[list[RowSide]] = []
    size = max_bytes
    for number, plan in enumerate(plans):
        sequence = plan.sequence
        if not plan.picked or (sequence.sampling.plain and sequence.constraint is None):
            continue
        side = row_side(number, plan)
        needed = side_bytes(side)
        if size + needed > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(side)
        size += needed
    return tuple(tuple(group) for group in groups)


def row_side(number: int, plan: RowPlan) -> RowSide:
    """Of the step's row `number`. Drafts of earlier windows in flight count as said, as they do in the caches."""
    sequence, first = plan.sequence, plan.start + plan.picked_start
    how, end = sequence.sampling, plan.start + plan.fresh
    said: Counter[int] = Counter()
    if how.penalizes:
        said.update(sequence.stream(sequence.prompt_length, first + 1))
    return RowSide(
        row=number,
        how=how,
        position=first + 1,
        drafts=tuple(sequence.stream(first + 1, end)) if how.penalizes else (),
        read=sequence.distinct_prompt() if how.repetition_penalty != 1.0 else (),
        said=tuple(said),
        times=tuple(said.values()),
        masks=_masks(plan, first, end),
    )


def _masks(plan: RowPlan, first: int, end: int) -> Masks | None:
    sequence = plan.sequence
    if sequence.constraint is None:
        return None
    certain = len(sequence.tokens)
    masks = sequence.constraint.masks(sequence.stream(certain, end))
    offset = first + 1 - certain
    return np.ascontiguousarray(masks[offset : offset + plan.picked]).view(np.int32)


def side_bytes(side: RowSide) -> int:
    """About what a row adds to a frame; never less than it does."""
    lists: Sequence[Sequence[int]] = (side.drafts, side.read, side.said, side.times)
    biased = 4 * len(side.how.logit_bias)
    masks = 0 if side.masks is None else side.masks.nbytes
    return _FIXED_BYTES + _ID_BYTES * (sum(map(len, lists)) + biased) + masks
