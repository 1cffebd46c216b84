"""From probes of machines to costs of layer ranges, and from a placement to tokens per second."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import numpy as np

from engine.contract.errors import UsageError
from engine.contract.probe import Probe, Timing
from export_tools.placement import MOST_FREE, Costs, Goal, Stage, place
from export_tools.plan import Weights

KV_BYTES: Final = {"f32": 4.0, "f16": 2.0, "u8": 1.13}  # per number; u8 with its scales


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What shall be served."""

    weights: Weights
    kv_bytes_per_token: int  # f32, of all layers together
    users: int  # at once
    context: int  # tokens of each, prompt and answer
    kv_precision: str = "f32"
    hop_ms: float = 0.5  # where a probe measured none

    @property
    def kv_bytes_per_layer(self) -> float:
        """Of all users together."""
        share = self.kv_bytes_per_token * KV_BYTES[self.kv_precision] / KV_BYTES["f32"] / len(self.weights.layers)
        return share * self.users * self.context


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One way to serve it, and how fast that would be."""

    stages: tuple[Stage, ...]  # their costs in ms, with `rows` rows in a step
    rows: int
    hops_ms: float  # of one pass: one more than there are stages
    tokens_per_second: float  # of all users together, without drafts
    token_ms: float  # one user alone

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of each stage, as `split --layers` takes them."""
        return tuple(stage.last - stage.first for stage in self.stages)


def plan_fleet(task: Task, probes: Sequence[Probe], goal: Goal, *, keep_order: bool = False) -> list[Placement]:
    """The best placement for every number of stages that is possible, the best of all first.

    Raises UsageError when the machines cannot hold the model, or are too many to try in any order.
    """
    if not keep_order and len(probes) > MOST_FREE:
        raise UsageError(f"{len(probes)} workers in any order are too many to try: name them in order, --keep-order")
    found = [
        option for count in range(1, len(probes) + 1) if (option := _option(task, probes, count, goal, keep_order))
    ]
    if not found:
        raise UsageError(_too_small(task, probes))
    if goal == "latency":
        return sorted(found, key=lambda option: option.token_ms)
    return sorted(found, key=lambda option: (-option.tokens_per_second, len(option.stages)))


def _option(task: Task, probes: Sequence[Probe], count: int, goal: Goal, keep_order: bool) -> Placement | None:
    groups = min(count, task.users)
    rows = 1 if goal == "latency" else -(-task.users // groups)
    stages = place([costs(task, probe, probes, rows) for probe in probes], count, goal, keep_order=keep_order)
    if stages is None:
        return None
    hops = sum(task.hop_ms if (hop := probes[s.worker].hop_ms) is None else hop for s in stages)
    hops *= (count + 1) / count
    alone = _total(task, probes, stages, 1) + hops
    busy = [_part(task, probes, stage, -(-task.users // groups)) for stage in stages]
    cycle = max(groups * max(busy), sum(busy) + hops)
    return Placement(stages=stages, rows=rows, hops_ms=hops, tokens_per_second=task.users * 1e3 / cycle, token_ms=alone)


def _total(task: Task, probes: Sequence[Probe], stages: Sequence[Stage], rows: int) -> float:
    return sum(_part(task, probes, stage, rows) for stage in stages)


def _part(task: Task, probes: Sequence[Probe], stage: Stage, rows: int) -> float:
    return float(costs(task, probes[stage.worker], probes, rows)[stage.first, stage.last])


def costs(task: Task, probe: Probe, others: Sequence[Probe], rows: int) -> Costs:
    """Milliseconds of a step of `rows` decode rows, for every range of layers; inf where memory does not hold it.

    Layers take time by their weights, compared with those that were measured. A worker that measured no embedding or
    head is believed to be as fast there, compared with its layers, as those that did.
    """
    sizes = task.weights.layers
    sums = list(accumulate(sizes, initial=0))
    first, last = probe.layers
    measured = (sums[last] - sums[first]) / (last - first)
    layer = at_rows(probe, lambda timing: timing.layer, rows)
    table = np.full((len(sums), len(sums)), np.inf)
    for begin in range(len(sizes)):
        for end in range(begin + 1, len(sizes) + 1):
            if memory_needed(task, probe, begin, end) <= probe.memory:
                table[begin, end] = layer * (sums[end] - sums[begin]) / measured
    table += at_rows(probe, lambda timing: timing.fixed, rows)
    ends = ("embedding", task.weights.embedding * 0), ("head", task.weights.head)  # a lookup reads next to nothing
    (embedding, head) = (_end(name, probe, others, rows, layer * size / measured) for name, size in ends)
    table[0] += embedding
    table[:, -1] += head
    return table


def _end(name: str, probe: Probe, others: Sequence[Probe], rows: int, otherwise: float) -> float:
    """Milliseconds of embedding or head: measured here, or elsewhere in layers, or by its bytes."""
    for one in (probe, *others):
        if all(getattr(timing, name) is not None for timing in one.timings if timing.load == "decode"):
            here = at_rows(one, lambda timing: getattr(timing, name), rows)
            scale = at_rows(probe, lambda timing: timing.layer, rows) / at_rows(one, lambda timing: timing.layer, rows)
            return here * scale
    return otherwise


def at_rows(probe: Probe, what: Callable[[Timing], float], rows: int) -> float:
    """A time at a number of decode rows: on straight lines between those measured, and on the last one beyond."""
    points = sorted((timing.rows, what(timing)) for timing in probe.timings if timing.load == "decode")
    if len(points) == 1 or rows <= points[0][0]:
        return points[0][1]
    (x0, y0), (x1, y1) = next(((a, b) for a, b in pairwise(points) if rows <= b[0]), (points[-2], points[-1]))
    return max(y0 + (y1 - y0) * (rows - x0) / (x1 - x0), points[0][1] * 0.1)


def memory_needed(task: Task, probe: Probe, first: int, last: int) -> float:
    """Bytes of a stage on this worker: weights as the device keeps them, KV cache for all users, what else it takes."""
    weights = task.weights
    size = sum(weights.layers[first:last]) + (weights.embedding if first == 0 else 0)
    size += weights.head if last == len(weights.layers) else 0
    return probe.overhead + size * probe.memory_per_weight + task.kv_bytes_per_layer * (last - first)


def _too_small(task: Task, probes: Sequence[Probe]) -> str:
    needed = memory_needed(task, probes[0], 0, len(task.weights.layers))
    there = ", ".join(f"{probe.name} {probe.memory / 2**20:.0f} MiB" for probe in probes)
    return (
        f"no cut fits: the model needs about {needed / 2**20:.0f} MiB with the KV cache of {task.users} users of "
        f"{task.context} tokens, and every part must fit one worker ({there}): add workers, or lower --users, --context"
    )
