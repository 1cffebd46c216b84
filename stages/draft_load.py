"""From a folder written by `shard-export draft` to a draft model."""

from pathlib import Path
from typing import Final

from engine.contract.errors import ManifestError
from engine.contract.manifest import Manifest, load_manifest, tokenizer_digest
from stages.draft_model import DraftModel
from stages.loader import check_shard, load_runner
from stages.settings import MIB, RunnerOptions

KV_BYTES: Final = 256 * MIB  # handed out by the system as it is used


def load_draft(folder: Path, target: Manifest, *, device: str = "CPU", threads: int = 1) -> DraftModel:
    """A draft for the model of `target`. Raises ManifestError, also when it was prepared for another; DeviceError."""
    manifest = load_manifest(folder)
    if len(manifest.stages) != 1 or not manifest.drafts_for:
        raise ManifestError(f"{folder} is not a draft model: prepare one with 'shard-export draft'")
    if manifest.drafts_for != tokenizer_digest(target):
        raise ManifestError(
            f"{folder} was prepared for a model with another tokenizer than {target.name}: "
            "run 'shard-export draft --target …' again with these shards"
        )
    check_shard(folder, manifest, 0)
    options = RunnerOptions(kind="paged", profile="fast", device=device, threads=threads, kv_bytes=KV_BYTES)
    runner = load_runner(folder, manifest, 0, options)
    return DraftModel(runner, vocabulary=min(manifest.vocabulary, target.vocabulary))
