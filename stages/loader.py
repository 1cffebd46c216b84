# pyright: basic
"""From a split on disk to a runner: check, read, pass, compile."""

from collections.abc import Callable
from pathlib import Path

import openvino as ov

from engine.contract.errors import CutError, DeviceError, ManifestError, UsageError
from engine.contract.manifest import Manifest, StageManifest, check_files, stage_manifest
from engine.contract.static import StaticLimits
from export_tools.passes.head import pick_before_head
from export_tools.passes.paged import to_paged
from export_tools.passes.static import static_shapes, to_static
from export_tools.passes.window import has_window
from stages.checks import ShardShape
from stages.memory import KvShare, measure_memory, pool_bytes
from stages.openvino_errors import device_errors
from stages.paged import PagedRunner, block_of
from stages.settings import MIB, RunnerOptions, compile_properties, max_step_tokens, min_row_tokens
from stages.slot import NO_SPARE
from stages.stateful import StatefulRunner, sequence_axes
from stages.static import StaticRunner

AnyRunner = PagedRunner | StatefulRunner | StaticRunner


def check_shard(folder: Path, manifest: Manifest, index: int) -> StageManifest:
    """The stage's files are all there and unaltered. Raises ManifestError."""
    stage = stage_manifest(manifest, index)
    check_files(folder, stage.files)
    return stage


def shard_shape(manifest: Manifest, index: int) -> ShardShape:
    """What goes into a stage and comes out of it."""
    return ShardShape(
        first=index == 0,
        last=index == len(manifest.stages) - 1,
        hidden_size=manifest.hidden_size,
        vocabulary=manifest.vocabulary,
    )


def load_runner(folder: Path, manifest: Manifest, index: int, options: RunnerOptions) -> AnyRunner:
    """A runner for one stage of a split whose files have been checked.

    Raises ManifestError, CutError, UsageError for an unknown device, DeviceError when it cannot be loaded.
    """
    stage = stage_manifest(manifest, index)
    _check_memory(stage, manifest, options)
    shape = shard_shape(manifest, index)
    doing = f"cannot load stage {index} on {options.device}"
    with device_errors(doing):
        core = ov.Core()
        _check_device(core, options)
        model = core.read_model(folder / stage.model)
    return make_runner(core, model, shape, manifest, options, doing)


def make_runner(
    core: ov.Core, model: ov.Model, shape: ShardShape, manifest: Manifest, options: RunnerOptions, doing: str
) -> AnyRunner:
    """A runner for a shard as it was read, or for part of one. Changes `model`. Raises CutError, DeviceError."""
    if options.kind == "paged":
        return _paged(core, model, shape, manifest, options, doing)
    if options.kind == "static":
        return _static(core, model, shape, manifest, options, doing)
    return _stateful(core, model, shape, manifest, options, doing)


def _paged(
    core: ov.Core, model: ov.Model, shape: ShardShape, manifest: Manifest, options: RunnerOptions, doing: str
) -> PagedRunner:
    to_paged(model)
    if shape.last:
        pick_before_head(model, axis=0)
    compiled = _compiler(core, model, options, doing)()
    memory, block = measure_memory(), block_of(compiled)
    size = pool_bytes(
        options.kv_bytes,
        memory,
        token_bytes=block.bytes / block.tokens,
        context_length=manifest.context_length,
    )
    return PagedRunner(
        compiled,
        shape,
        kv_bytes=size,
        context_length=manifest.context_length,
        min_row_tokens=min_row_tokens(options),
        max_step_tokens=max_step_tokens(options),
    )


def _stateful(
    core: ov.Core, model: ov.Model, shape: ShardShape, manifest: Manifest, options: RunnerOptions, doing: str
) -> StatefulRunner:
    axes, windows = sequence_axes(model), has_window(model)
    if windows and len(axes) < len(model.get_sinks()):
        raise CutError("layers with a sliding window, and a cache that cannot be compacted: use --runner paged")
    if shape.last:
        pick_before_head(model, axis=1)
    return StatefulRunner(
        _compiler(core, model, options, doing),
        axes,
        shape,
        slots=options.slots,
        context_length=manifest.context_length,
        spare=NO_SPARE if windows else options.spare,
    )


def _static(
    core: ov.Core, model: ov.Model, shape: ShardShape, manifest: Manifest, options: RunnerOptions, doing: str
) -> StaticRunner:
    limits = _static_limits(manifest)
    shapes = static_shapes(limits, kv=options.cache_precision)
    graphs = [to_static(model.clone(), one, last=shape.last) for one in shapes]
    compiled = [_compiler(core, graph, options, doing)() for graph in graphs]
    return StaticRunner(
        compiled[0],
        compiled[1] if len(compiled) > 1 else None,
        shape,
        limits,
        context_length=manifest.context_length,
    )


def _static_limits(manifest: Manifest) -> StaticLimits:
    if manifest.static is None:
        raise ManifestError(
            f"the split of {manifest.name} was not made for the static runner: "
            "shard-export split … --static --context 1024 --slots 4, or another --runner"
        )
    return manifest.static


def _compiler(core: ov.Core, model: ov.Model, options: RunnerOptions, doing: str) -> Callable[[], ov.CompiledModel]:
    def compile_shard() -> ov.CompiledModel:
        with device_errors(doing):
            return core.compile_model(model, options.device, compile_properties(options))

    return compile_shard


def _check_device(core: ov.Core, options: RunnerOptions) -> None:
    there = core.available_devices
    if not there:
        raise DeviceError("OpenVINO finds no device at all: is it out of memory, or half installed?")
    if options.device not in there and options.device.split(".")[0] not in there:
        raise UsageError(f"no device {options.device} here, only {', '.join(there)}")
    if options.kind == "paged" and options.device != "CPU":
        # its cache would be copied in and out at each step, and written blocks lost
        raise UsageError(f"the paged runner runs on CPU only: use --runner stateful on {options.device}")


def _check_memory(stage: StageManifest, manifest: Manifest, options: RunnerOptions) -> None:
    """Better one line now than the system's out-of-memory killer later."""
    chosen, copies = 0, 1
    if options.kind == "paged" and not isinstance(options.kv_bytes, KvShare):
        chosen = options.kv_bytes
    elif options.kind == "static":
        limits = _static_limits(manifest)
        share = (stage.last_layer - stage.first_layer) / manifest.layers
        chosen = int(limits.columns * manifest.kv_bytes_per_token * share)
        copies = 2 if limits.prefill_chunk else 1  # each graph has its own copy of the weights
    needed, free = stage.weight_bytes * copies + chosen, measure_memory().free
    if needed > free:
        raise DeviceError(
            f"stage {stage.index} needs {needed // MIB} MiB (weights and KV cache), {free // MIB} MiB are free: "
            "split into more stages, or lower --kv-memory"
        )
