# pyright: basic
"""From files to a runner: checked against the manifest, transformed, compiled."""

from dataclasses import dataclass
from pathlib import Path

import openvino as ov

from engine.contract.control import Profile
from engine.contract.errors import DeviceError
from engine.contract.manifest import Manifest, check_files, load_manifest, stage_manifest
from export_tools.passes.head import pick_before_head
from export_tools.passes.paged import to_paged
from stages.paged import PagedRunner
from stages.runner import Runner, RunnerKind
from stages.settings import MIN_ROW_TOKENS, compile_properties
from stages.stateful import StatefulRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How a shard is to run."""

    runner: RunnerKind = "paged"
    profile: Profile = "exact"
    device: str = "CPU"
    threads: int = 0
    kv_memory: int = 512 << 20  # bytes
    slots: int = 8
    cache: Path | None = None
    properties: tuple[tuple[str, str], ...] = ()  # further OpenVINO properties, for measurements


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of the model a runner runs."""

    manifest: Manifest
    index: int

    @property
    def first(self) -> bool:
        """Whether token ids come in."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether logits go out."""
        return self.index == len(self.manifest.stages) - 1


def load_checked(folder: Path, index: int) -> Shard:
    """The shard's description after comparing its files with their digests. Raises ManifestError."""
    manifest = load_manifest(folder)
    stage = stage_manifest(manifest, index)
    check_files(folder, stage.files)
    return Shard(manifest, index)


def open_runner(folder: Path, shard: Shard, options: LoadOptions) -> Runner:
    """Load and compile. Raises DeviceError, CutError."""
    stage = shard.manifest.stages[shard.index]
    path = folder / stage.model
    try:
        model = ov.Core().read_model(path)
    except RuntimeError as error:
        raise DeviceError(f"{path} cannot be read: {_reason(error)}") from error
    return open_model(model, shard, options)


def open_model(model: ov.Model, shard: Shard, options: LoadOptions) -> Runner:
    """Transform and compile a stateful shard that is already in memory. Changes `model`."""
    manifest = shard.manifest
    paged = options.runner == "paged"
    if paged:
        to_paged(model)
    if shard.last:
        pick_before_head(model, axis=0 if paged else 1)
    compiled = _compile(model, options)
    try:
        if paged:
            return PagedRunner(
                compiled,
                shard,
                kv_memory=options.kv_memory,
                min_row_tokens=MIN_ROW_TOKENS[options.profile],
            )
        return StatefulRunner(compiled, shard, slots=options.slots, again=lambda: _compile(model, options))
    except (RuntimeError, MemoryError) as error:
        raise DeviceError(
            f"stage {shard.index} of {manifest.slug} does not start on {options.device}: {_reason(error)}; "
            "less --kv-memory may help"
        ) from error


def _compile(model: ov.Model, options: LoadOptions) -> ov.CompiledModel:
    properties = compile_properties(options.profile, threads=options.threads, cache=options.cache)
    try:
        return ov.Core().compile_model(model, options.device, {**properties, **dict(options.properties)})
    except (RuntimeError, MemoryError) as error:
        raise DeviceError(f"OpenVINO cannot compile the shard for {options.device}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
