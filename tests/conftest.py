"""What tests share: the demo model and its splits, made once a session and kept in the user's cache."""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.contract.errors import ManifestError
from engine.contract.manifest import load_manifest
from engine.local.model import cache_folder, demo_gguf

ROOT = Path(__file__).parent.parent
Shards = Callable[[int], Path]


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's GGUF file."""
    return asyncio.run(demo_gguf(print))


@pytest.fixture(scope="session")
def demo_splits(demo_model: Path) -> dict[int, Path]:
    """Splits into 1, 2 and 3 stages, made by the code under test: the cache knows its digest."""
    from export_tools.sources.open import open_source  # noqa: PLC0415  OpenVINO, which unit tests do without
    from export_tools.split import SplitOptions, split  # noqa: PLC0415

    home = cache_folder() / "tests" / _digest_of_exporter()
    splits = {stages: home / str(stages) for stages in (1, 2, 3)}
    missing = [stages for stages, folder in splits.items() if not _is_split(folder)]
    if missing:
        with open_source(demo_model) as source:
            for stages in missing:
                options = SplitOptions(out=splits[stages], stages=stages, name="smollm2-135m-instruct", force=True)
                split(source, options, print)
    return splits


@pytest.fixture(scope="session")
def shards(demo_splits: dict[int, Path]) -> Shards:
    """The demo model in that many shards; do not change the folder."""
    return demo_splits.__getitem__


def _is_split(folder: Path) -> bool:
    try:
        load_manifest(folder)
    except ManifestError:
        return False
    return True


def _digest_of_exporter() -> str:
    sources = sorted((ROOT / "export_tools").rglob("*.py")) + sorted((ROOT / "engine" / "contract").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
