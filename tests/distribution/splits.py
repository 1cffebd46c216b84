"""A split with files that no model could read, some pieces long."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from engine.contract.manifest import Manifest, StageManifest, digest_file
from engine.distribution.pieces import CHUNK_BYTES
from tests.manifests import manifest

PIECES = 4  # of a shard's weights; the last one is short
WEIGHTS = (PIECES - 1) * CHUNK_BYTES + 100


def make_split(folder: Path, *, seed: int = 0, slug: str = "model") -> Manifest:
    """Two stages and a tokenizer; another seed, other weights."""
    noise = np.random.default_rng(seed)
    files = {
        "stage0/openvino_model.xml": b"<net/>",
        "stage0/openvino_model.bin": noise.bytes(WEIGHTS),
        "stage1/openvino_model.xml": b"<net/>",  # the same contents: kept once
        "stage1/openvino_model.bin": noise.bytes(WEIGHTS),
        "tokenizer/tokenizer.json": b"{}",
        "tokenizer/empty": b"",
    }
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    entries = {name: digest_file(folder, folder / name) for name in files}
    stages = tuple(
        StageManifest(
            index=index,
            first_layer=index,
            last_layer=index + 1,
            model=f"stage{index}/openvino_model.xml",
            files=tuple(entry for name, entry in entries.items() if name.startswith(f"stage{index}/")),
            weight_bytes=WEIGHTS,
        )
        for index in (0, 1)
    )
    tokenizer = tuple(entry for name, entry in entries.items() if name.startswith("tokenizer/"))
    whole = replace(manifest(), stages=stages, tokenizer_files=tokenizer, slug=slug, split=f"{seed:064x}")
    whole.save(folder)
    return whole


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its relative path, the manifest left out."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }
