# pyright: basic
"""`shard-export plan`, for people and scripts: what it reads of a model, and how it shows a placement."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import openvino as ov
from rich.console import Console
from rich.table import Table

from engine.contract.errors import UsageError
from engine.contract.manifest import MANIFEST_NAME, load_manifest
from engine.contract.probe import Probe
from export_tools.fleet import Placement, Task, memory_needed
from export_tools.placement import Stage
from export_tools.plan import Weights
from export_tools.sources.open import open_source
from export_tools.split import kv_bytes_per_token
from export_tools.weigh import weigh

MIB: Final = 1 << 20


def make_task(model: Path, probes: Sequence[Probe], **wishes: Any) -> Task:
    """What shall be served, read from a split or from a source. Raises UsageError when probes are of another model."""
    if (model / MANIFEST_NAME).is_file():
        manifest = load_manifest(model)
        weights = Weights(manifest.layer_bytes, manifest.embedding_bytes, manifest.head_bytes)
        digest, kv = manifest.source_digest, manifest.kv_bytes_per_token
        if not weights.layers:
            raise UsageError(f"{model} was written by an older shardline, which kept no sizes: name its source instead")
    else:
        with open_source(model) as source:
            whole = ov.Core().read_model(source.model)
            weights, digest, kv = weigh(whole), source.digest, kv_bytes_per_token(whole)
    for probe in probes:
        if probe.source_digest != digest:
            raise UsageError(f"the probe {probe.name} measured {probe.model}, not the model in {model}: measure again")
    names = [probe.name for probe in probes]
    if len(set(names)) < len(names):
        raise UsageError(f"two probes have one name ({', '.join(names)}): measure with --name")
    return Task(weights=weights, kv_bytes_per_token=kv, **wishes)


def placement_dict(task: Task, probes: Sequence[Probe], placement: Placement) -> dict[str, Any]:
    """For scripts."""
    return {
        "layers": list(placement.layers),
        "tokens_per_second": round(placement.tokens_per_second, 2),
        "token_ms_alone": round(placement.token_ms, 3),
        "rows_per_step": placement.rows,
        "hops_ms": round(placement.hops_ms, 3),
        "stages": [
            {
                "worker": probes[stage.worker].name,
                "layers": [stage.first, stage.last],
                "step_ms": round(stage.cost, 3),
                "memory": int(_memory(task, probes, stage)),
                "memory_limit": probes[stage.worker].memory,
            }
            for stage in placement.stages
        ],
    }


def _memory(task: Task, probes: Sequence[Probe], stage: Stage) -> float:
    return memory_needed(task, probes[stage.worker], stage.first, stage.last)


def show(task: Task, probes: Sequence[Probe], found: list[Placement], model: Path, *, explain: bool) -> None:
    """Print the best, and how to make it; with `explain` what the others would be."""
    best, console = found[0], Console()
    table = Table("stage", "worker", "layers", "ms a step", "memory", "of")
    for index, stage in enumerate(best.stages):
        sizes = (f"{size / MIB:.0f} MiB" for size in (_memory(task, probes, stage), probes[stage.worker].memory))
        layers = f"[{stage.first}, {stage.last})"
        table.add_row(str(index), probes[stage.worker].name, layers, f"{stage.cost:.2f}", *sizes)
    console.print(table)
    console.print(f"predicted, without drafts: {_speed(task, best)}", highlight=False)
    unused = [p.name for i, p in enumerate(probes) if i not in {stage.worker for stage in best.stages}]
    if unused:
        console.print(f"not used, it would be slower: {', '.join(unused)}", highlight=False)
    if explain:
        _explain(task, probes, found, console)
    layers = ",".join(map(str, best.layers))
    console.print(f"shard-export split MODEL --layers {layers} --out DIR", highlight=False, markup=False)


def _speed(task: Task, placement: Placement) -> str:
    return (
        f"{placement.tokens_per_second:.1f} tokens/s for {task.users} users, "
        f"{placement.token_ms:.1f} ms a token for one alone"
    )


def _explain(task: Task, probes: Sequence[Probe], found: list[Placement], console: Console) -> None:
    best = found[0]
    slowest = max(best.stages, key=lambda stage: stage.cost)
    name, hops = probes[slowest.worker].name, len(best.stages) + 1
    console.print(
        f"a step has {best.rows} rows; the slowest stage is {name} with {slowest.cost:.2f} ms; "
        f"{hops} hops take {best.hops_ms:.2f} ms of a pass",
        highlight=False,
    )
    for probe in probes:
        ends = {what for t in probe.timings for what in ("embedding", "head") if getattr(t, what) is not None}
        if missing := sorted({"embedding", "head"} - ends):
            console.print(f"{probe.name} measured no {' and no '.join(missing)}: estimated", highlight=False)
    for other in found[1:]:
        chain = ", ".join(f"{probes[s.worker].name} [{s.first}, {s.last})" for s in other.stages)
        console.print(f"{len(other.stages)} stages: {_speed(task, other)}: {chain}", highlight=False, markup=False)
