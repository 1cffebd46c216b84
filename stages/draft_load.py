"""From a folder written by `shard-export draft` to a draft model."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine.contract.errors import ManifestError
from engine.contract.manifest import HEAD_TOKENS, Manifest, StageManifest, load_manifest, tokenizer_digest
from stages.draft_model import DraftModel
from stages.loader import check_shard, load_runner
from stages.settings import MIB, RunnerOptions

KV_BYTES: Final = 256 * MIB  # handed out by the system as it is used


def check_draft(folder: Path, target: Manifest) -> Manifest:
    """The draft's manifest. Raises ManifestError when it is none, or was prepared for another model."""
    manifest = load_manifest(folder)
    if len(manifest.stages) != 1 or not manifest.drafts_for:
        raise ManifestError(f"{folder} is not a draft model: prepare one with 'shard-export draft'")
    if manifest.drafts_for != tokenizer_digest(target):
        raise ManifestError(
            f"{folder} was prepared for a model with another tokenizer than {target.name}: "
            "run 'shard-export draft --target …' again with these shards"
        )
    return manifest


def load_draft(folder: Path, target: Manifest, *, device: str = "CPU", threads: int = 1) -> DraftModel:
    """A draft for the model of `target`. Raises ManifestError, also when it was prepared for another; DeviceError."""
    manifest = check_draft(folder, target)
    head = read_head_tokens(folder, check_shard(folder, manifest, 0))
    options = RunnerOptions(kind="paged", profile="fast", device=device, threads=threads, kv_bytes=KV_BYTES)
    runner = load_runner(folder, manifest, 0, options)
    return DraftModel(runner, vocabulary=min(manifest.vocabulary, target.vocabulary), head=head)


def read_head_tokens(folder: Path, stage: StageManifest) -> npt.NDArray[np.int32] | None:
    """The token of each row of a draft's head; None where the head is whole. Raises ManifestError."""
    path = (folder / stage.model).parent / HEAD_TOKENS
    if path.relative_to(folder).as_posix() not in (file.path for file in stage.files):
        return None
    try:
        ids: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ManifestError(f"{path} cannot be read: {error}") from error
    if ids.ndim != 1 or ids.dtype != np.int32 or not len(ids):
        raise ManifestError(f"{path} is not a list of token ids, int32: prepare the draft again")
    return ids
