"""A step's arrays from the plans of its rows."""

from collections.abc import Iterable

import numpy as np

from engine.contract.messages import ROW_COLUMNS, IntArray, Rows
from engine.decoder.batching import RowPlan
from engine.kv.blocks import blocks_for


def build_rows(plans: Iterable[RowPlan], block_size: int) -> Rows:
    """The columns of a step's rows."""
    plans = list(plans)
    table = np.zeros((len(plans), ROW_COLUMNS), np.int32)
    blocks: list[int] = []
    for line, plan in zip(table, plans, strict=True):
        used = plan.sequence.table.blocks[: blocks_for(plan.start + plan.length, block_size)]
        line[:] = (plan.start, plan.length, plan.sequence.slot, plan.picked_start, plan.picked, len(used))
        blocks += used
    return Rows(table, np.array(blocks, np.int32))


def build_tokens(plans: Iterable[RowPlan]) -> IntArray:
    """Token ids of all rows, dummies as 0, int32 (tokens,)."""
    flat: list[int] = []
    for plan in plans:
        flat += plan.sequence.stream(plan.start, plan.start + plan.fresh)
        flat += [0] * plan.dummies
    return np.array(flat, np.int32)
