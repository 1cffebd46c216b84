# pyright: basic
"""What does a layer cost on this machine? `stage-run --probe` measures one shard; `shard-export plan` reads it.

Three or four parts of the shard are timed: all of it, its layers without embedding and head, half of these. Their
differences say what one layer costs, what each step costs whatever its layers, and what embedding and head cost.
"""

import logging
import platform
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import openvino as ov
import psutil

from engine.contract.errors import UsageError
from engine.contract.manifest import Manifest, stage_manifest
from engine.contract.messages import Rows
from engine.contract.probe import Load, Probe, Timing
from engine.transport.base import Transport
from export_tools.passes.cut import cut
from stages.chain import make_rows
from stages.checks import ShardShape
from stages.loader import load_runner, make_runner, shard_shape
from stages.memory import measure_memory
from stages.runner import Runner
from stages.settings import MIB, RunnerOptions

CONTEXT: Final = 256  # tokens before each row
VERIFY_TOKENS: Final = 5
PREFILL_TOKENS: Final = 64  # as many as one step of profile exact takes
SECONDS: Final = 1.0  # at least five steps, and as many as fit
LEAST_REPEATS: Final = 5
HOPS: Final = 50
log = logging.getLogger("shardline.stage")
Milliseconds = dict[tuple[Load, int, int], float]  # by load, rows, tokens of each row


@dataclass(frozen=True, slots=True)
class Parts:
    """Layers of a shard, counted within it, that are timed."""

    layers: int
    first: int  # the middle: [first, last), without embedding and head
    last: int
    half: int  # of the middle


def parts_of(shape: ShardShape, layers: int) -> Parts:
    """Raises UsageError for a shard that is too short to tell its parts apart."""
    first, last = int(shape.first), layers - int(shape.last)
    if last - first < 2:
        raise UsageError(f"a shard of {layers} layers cannot be probed: split the model into fewer stages for that")
    return Parts(layers, first, last, (last - first) // 2)


def separate(
    parts: Parts, whole: Milliseconds, front: Milliseconds | None, middle: Milliseconds, half: Milliseconds
) -> tuple[Timing, ...]:
    """Times of a shard's parts, by what costs them. `front`: all but the head, of a shard with an embedding.

    No time is less than nothing: where noise says so, the rest is the layers'.
    """
    timings: list[Timing] = []
    count = parts.last - parts.first
    for key, time_of_middle in middle.items():
        fixed = max(0.0, time_of_middle - count * (time_of_middle - half[key]) / (count - parts.half))
        fixed = min(fixed, 0.9 * time_of_middle)
        layer = (time_of_middle - fixed) / count
        embedding = head = None
        if front is not None:
            embedding = max(0.0, front[key] - fixed - layer * parts.last)
        if parts.last < parts.layers:
            head = max(0.0, whole[key] - fixed - layer * parts.layers - (embedding or 0.0))
        load, rows, tokens = key
        timings.append(
            Timing(load=load, rows=rows, tokens=tokens, layer=layer, fixed=fixed, embedding=embedding, head=head)
        )
    return tuple(timings)


def probe_shard(folder: Path, manifest: Manifest, index: int, options: RunnerOptions, name: str) -> Probe:
    """Measure one stage of a split whose files have been checked; takes up to a minute.

    Raises UsageError for a shard that is too short, and what `load_runner` raises.
    """
    stage, shape = stage_manifest(manifest, index), shard_shape(manifest, index)
    parts = parts_of(shape, stage.last_layer - stage.first_layer)
    options = replace(options, kv_bytes=_pool(manifest), slots=4)
    memory, process = measure_memory().spare, psutil.Process()
    before = process.memory_info().rss
    log.info("loading the shard")
    whole = _timed(load_runner(folder, manifest, index, options), shape)
    grown = whole.resident - before
    times = [whole.times]
    ranges = [(0, parts.last)] if shape.first and shape.last else []
    ranges += [(parts.first, parts.last), (parts.first, parts.first + parts.half)]
    for first, last in ranges:
        log.info("measuring %d of its %d layers", last - first, parts.layers)
        within = replace(shape, first=shape.first and first == 0, last=False)
        times.append(_timed(_part(folder / stage.model, manifest, within, (first, last), options), within).times)
    front = (times[1] if shape.last else times[0]) if shape.first else None
    return Probe(
        name=name or platform.node() or "worker",
        model=manifest.slug,
        source_digest=manifest.source_digest,
        layers=(stage.first_layer, stage.last_layer),
        device=options.device,
        runner=options.kind,
        profile=options.profile,
        threads=options.threads,
        context=CONTEXT,
        timings=separate(parts, times[0], front, times[-2], times[-1]),
        memory=memory,
        memory_per_weight=max(1.0, grown / max(stage.weight_bytes, 1)),
        hop_ms=None,
    )


async def measure_hop(transport: Transport, subject: str, *, size: int) -> float:
    """Median milliseconds of `size` bytes to the broker and back, as from one stage to the next."""
    samples: list[float] = []
    async with transport.subscribe(subject) as inbox:
        for _ in range(HOPS):
            began = time.perf_counter()
            await transport.publish(subject, bytes(size))
            await inbox.get()
            samples.append((time.perf_counter() - began) * 1e3)
    return statistics.median(samples)


def _pool(manifest: Manifest) -> int:
    """Room for the largest step measured; untouched pages take no memory."""
    return manifest.kv_bytes_per_token * 17 * (CONTEXT + 2 * PREFILL_TOKENS) + 64 * MIB


def _part(path: Path, manifest: Manifest, shape: ShardShape, layers: tuple[int, int], options: RunnerOptions) -> Runner:
    core = ov.Core()
    model = cut(lambda: core.read_model(path), *layers)
    return make_runner(core, model, shape, manifest, options, "cannot load a part of the shard")


@dataclass(frozen=True, slots=True)
class _Timed:
    times: Milliseconds
    resident: int  # bytes of the process while it was loaded


def _timed(runner: Runner, shape: ShardShape) -> _Timed:
    try:
        return _Timed(_measure(runner, shape), psutil.Process().memory_info().rss)
    finally:
        runner.close()


def _measure(runner: Runner, shape: ShardShape) -> Milliseconds:
    can = runner.capabilities
    loads: list[tuple[Load, int, int]] = [("verify", 1, VERIFY_TOKENS), ("prefill", 1, PREFILL_TOKENS)]
    loads += [("decode", rows, can.min_row_tokens) for rows in _rows(can.slots)]
    noise = np.random.default_rng(0)

    def step(rows: int, start: int, tokens: int, picked: int) -> tuple[Rows, np.ndarray]:
        lines = [(slot, start, tokens, 0, picked) for slot in range(rows)]
        value: Any = noise.standard_normal((rows * tokens, shape.hidden_size), np.float32)
        if shape.first:
            value = noise.integers(0, shape.vocabulary, rows * tokens).astype(np.int32)
        per_slot = -(-(CONTEXT + PREFILL_TOKENS) // can.block_size) if can.block_size else 0
        return make_rows(lines, can.block_size, per_slot), value

    for start in range(0, CONTEXT, PREFILL_TOKENS):
        runner.infer(*step(_rows(can.slots)[-1] if can.slots else 1, start, PREFILL_TOKENS, 0))
    picks = {"decode": 1, "verify": VERIFY_TOKENS, "prefill": 0}
    return {(load, n, tokens): _median(runner, *step(n, CONTEXT, tokens, picks[load])) for load, n, tokens in loads}


def _rows(slots: int) -> tuple[int, ...]:
    """Numbers of decode rows. A runner with slots computes one after the other."""
    return (1, 2) if slots else (1, 4, 16)


def _median(runner: Runner, rows: Rows, value: np.ndarray) -> float:
    """Milliseconds of one step, warm."""
    runner.infer(rows, value)
    samples: list[float] = []
    until = time.monotonic() + SECONDS
    while len(samples) < LEAST_REPEATS or time.monotonic() < until:
        began = time.perf_counter()
        runner.infer(rows, value)
        samples.append((time.perf_counter() - began) * 1e3)
    return statistics.median(samples)
