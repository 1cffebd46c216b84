# pyright: basic
"""A draft on disk given a narrow head: its shard is written anew, with the list of the tokens that it scores."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov

from engine.contract.manifest import HEAD_TOKENS, Manifest, digest_file
from export_tools.passes.narrow_head import narrow_head
from export_tools.split import split_digest


def narrow_stage(folder: Path, manifest: Manifest, ids: np.ndarray) -> Manifest:
    """Leave only these tokens (int32) in the head of the one-stage split in `folder`; its manifest as it is then.

    The manifest is not saved. Nothing is changed when it raises. Raises CutError.
    """
    (stage,) = manifest.stages
    target = folder / stage.model
    core = ov.Core()
    core.set_property({"ENABLE_MMAP": False})  # the weights are read from the file that is replaced
    model = core.read_model(target)
    narrow_head(model, ids)
    ov.save_model(model, target, compress_to_fp16=False)
    tokens = target.parent / HEAD_TOKENS
    np.save(tokens, ids)
    files = tuple(digest_file(folder, path) for path in (target, target.with_suffix(".bin"), tokens))
    stages = (replace(stage, files=files, weight_bytes=files[1].bytes),)
    return replace(manifest, stages=stages, split=split_digest(stages))
