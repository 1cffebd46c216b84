# pyright: basic
"""What does a layer cost on this machine? `stage-run --probe` measures one shard; `shard-export plan` reads it.

Parts of the shard are timed in turns, so that what else the machine does meets them alike: some layers from its middle,
half of these, the half with the embedding, the half with the head. Their differences say what each costs.
"""

import logging
import platform
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
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
from stages.loader import make_runner, shard_shape
from stages.memory import measure_memory
from stages.runner import Runner
from stages.settings import MIB, RunnerOptions

CONTEXT: Final = 256  # tokens before each row
VERIFY_TOKENS: Final = 5
PREFILL_TOKENS: Final = 64  # as many as one step of profile exact takes
SECONDS: Final = 10.0  # of measuring, or LEAST_TURNS where these take longer
LEAST_TURNS: Final = 5
REPEATS: Final = 3  # in one turn
MOST_LAYERS: Final = 6  # of half a middle
HOPS: Final = 50
log = logging.getLogger("shardline.stage")
Key = tuple[Load, int, int]  # rows, tokens of each row
Milliseconds = dict[Key, float]


@dataclass(frozen=True, slots=True)
class Step:
    """One kind of step, ready to run again and again."""

    key: Key
    rows: Rows
    value: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """Ranges of layers, counted within a shard, that are timed. `front` and `tail` have as many as `half`, and one."""

    half: tuple[int, int]
    middle: tuple[int, int]  # twice as many
    front: tuple[int, int] | None  # with the embedding
    tail: tuple[int, int] | None  # with the head

    @property
    def layers(self) -> int:
        """Of `half`."""
        return self.half[1] - self.half[0]

    @property
    def all(self) -> tuple[tuple[int, int], ...]:
        """Those that there are."""
        return tuple(part for part in (self.half, self.middle, self.front, self.tail) if part is not None)


def parts_of(shape: ShardShape, layers: int) -> Parts:
    """Raises UsageError for a shard that is too short to tell its parts apart."""
    begin, end = int(shape.first), layers - int(shape.last)
    half = min((end - begin) // 2, MOST_LAYERS)
    if half < 1:
        raise UsageError(f"a shard of {layers} layers cannot be probed: split the model into fewer stages for that")
    return Parts(
        half=(begin, begin + half),
        middle=(begin, begin + 2 * half),
        front=(0, half + 1) if shape.first else None,
        tail=(layers - half - 1, layers) if shape.last else None,
    )


def separate(parts: Parts, times: Mapping[tuple[int, int], Milliseconds]) -> tuple[Timing, ...]:
    """Times by what costs them, from those of the parts. None is less than nothing: so much for noise."""
    timings: list[Timing] = []
    for key, middle in times[parts.middle].items():
        half = times[parts.half][key]
        fixed = min(max(0.0, 2 * half - middle), 0.9 * middle)
        layer = (middle - fixed) / (2 * parts.layers)
        base = fixed + layer * (parts.layers + 1)
        embedding, head = (
            None if part is None else max(0.0, times[part][key] - base) for part in (parts.front, parts.tail)
        )
        load, rows, tokens = key
        timings.append(
            Timing(load=load, rows=rows, tokens=tokens, layer=layer, fixed=fixed, embedding=embedding, head=head)
        )
    return tuple(timings)


def probe_shard(folder: Path, manifest: Manifest, index: int, options: RunnerOptions, name: str) -> Probe:
    """Measure one stage of a split whose files have been checked; takes half a minute.

    Raises UsageError for a shard that is too short, and what `load_runner` raises.
    """
    stage, shape = stage_manifest(manifest, index), shard_shape(manifest, index)
    parts = parts_of(shape, stage.last_layer - stage.first_layer)
    if options.kind == "static":
        raise UsageError(
            "a static shard computes fixed steps, which the plan does not know: probe with another --runner"
        )
    options = replace(options, kv_bytes=_pool(manifest), slots=2)
    memory = measure_memory().spare
    opened: dict[tuple[int, int], tuple[Runner, list[Step]]] = {}
    resident, weights = [_resident()], [0]
    for part in parts.all:
        log.info("loading layers [%d, %d) of the shard", *part)
        model = _read_part(folder / stage.model, part)
        weights.append(_weight_bytes(model))
        within = replace(shape, first=shape.first and part == parts.front, last=shape.last and part == parts.tail)
        runner = make_runner(ov.Core(), model, within, manifest, options, "cannot load a part of the shard")
        del model
        opened[part] = runner, steps_for(runner, within)
        resident.append(_resident())
    log.info("measuring")
    times = _in_turns(opened)
    for runner, _ in opened.values():
        runner.close()
    grown = (resident[-1] - resident[1]) / max(sum(weights[2:]), 1)  # the first one also loads libraries
    per_weight = max(1.0, grown)
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
        timings=separate(parts, times),
        memory=memory,
        memory_per_weight=per_weight,
        overhead=max(0, int(resident[1] - resident[0] - per_weight * weights[1])),
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


def _read_part(path: Path, layers: tuple[int, int]) -> ov.Model:
    core = ov.Core()
    return cut(lambda: core.read_model(path), *layers)


def _weight_bytes(model: ov.Model) -> int:
    return sum(node.get_byte_size() for node in model.get_ops() if node.get_type_name() == "Constant")


def _resident() -> int:
    """Bytes of this process in memory."""
    return psutil.Process().memory_info().rss


def steps_for(runner: Runner, shape: ShardShape) -> list[Step]:
    """Every kind of step that is measured, behind a context that the runner then holds."""
    can, noise = runner.capabilities, np.random.default_rng(0)
    per_slot = -(-(CONTEXT + PREFILL_TOKENS) // can.block_size) if can.block_size else 0

    def step(load: Load, rows: int, tokens: int, start: int = CONTEXT) -> Step:
        value: Any = noise.standard_normal((rows * tokens, shape.hidden_size), np.float32)
        if shape.first:
            value = noise.integers(0, shape.vocabulary, rows * tokens).astype(np.int32)
        picked = {"decode": 1, "verify": tokens, "prefill": 0}[load]
        lines = [(slot, start, tokens, 0, picked) for slot in range(rows)]
        return Step((load, rows, tokens), make_rows(lines, can.block_size, per_slot), value)

    decode_rows = (1, 2) if can.slots else (1, 4, 16)  # a runner with slots computes one after the other
    for start in range(0, CONTEXT, PREFILL_TOKENS):
        before = step("prefill", decode_rows[-1] if can.slots else 1, PREFILL_TOKENS, start)
        runner.infer(before.rows, before.value)
    return [
        *(step("decode", rows, can.min_row_tokens) for rows in decode_rows),
        step("verify", 1, VERIFY_TOKENS),
        step("prefill", 1, PREFILL_TOKENS),
    ]


def _in_turns(opened: Mapping[tuple[int, int], tuple[Runner, list[Step]]]) -> dict[tuple[int, int], Milliseconds]:
    """The lower quartile of each part and kind of step: what it takes when little else is in the way."""
    samples = {part: {step.key: list[float]() for step in steps} for part, (_, steps) in opened.items()}
    until = time.monotonic() + SECONDS
    turns = -1  # the first warms up
    while turns < LEAST_TURNS or time.monotonic() < until:
        turns += 1
        for part, (runner, steps) in opened.items():
            for step in steps:
                runner.infer(
                    step.rows, step.value
                )  # again and again is how a stage computes: what comes first is slower
                for _ in range(REPEATS):
                    began = time.perf_counter()
                    runner.infer(step.rows, step.value)
                    if turns:
                        samples[part][step.key].append((time.perf_counter() - began) * 1e3)
    return {
        part: {key: statistics.quantiles(found, n=4)[0] for key, found in kinds.items()}
        for part, kinds in samples.items()
    }
