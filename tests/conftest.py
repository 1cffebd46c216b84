"""What tests share: the demo model and its splits, made once and kept in the user's cache; and who runs which test.

`make test` runs two workers (pytest-xdist). Tests of one file that need the model stay with one worker, because they
share what the file's fixtures load; the longest files come first, so that no worker is left waiting at the end.
"""

import asyncio
import hashlib
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from filelock import FileLock

from engine.contract.errors import ManifestError
from engine.contract.manifest import load_manifest
from engine.local.model import cache_folder, demo_draft, demo_gguf

ROOT = Path(__file__).parent.parent
Shards = Callable[[int], Path]
LONGEST = ("test_speculation.py", "test_sampling.py", "test_equality.py", "test_by_hand.py")


def pytest_configure() -> None:
    """Ctrl-C reaches our children: who is started in the background has it ignored, and would pass that on."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Groups for the workers, and their order; a run without workers keeps its own. Without torch no export tests."""
    if find_spec("torch") is None and config.option.markexpr != "export":
        for item in items:
            if item.get_closest_marker("export"):
                item.add_marker(pytest.mark.skip(reason="needs torch: make test-export"))
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        if item.get_closest_marker("model") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> tuple[bool, int]:
    long = item.path.name in LONGEST and item.path.parent.name == "system"
    return not item.get_closest_marker("model"), LONGEST.index(item.path.name) if long else len(LONGEST)


@contextmanager
def one_at_a_time() -> Generator[None]:
    """What workers make for the cache is made by one of them; the others wait and find it there."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with FileLock(cache_folder() / ".tests.lock"):
        yield


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's GGUF file."""
    with one_at_a_time():
        return asyncio.run(demo_gguf(print))


@pytest.fixture(scope="session")
def demo_splits(demo_model: Path) -> dict[int, Path]:
    """Splits into 1, 2 and 3 stages, made by the code under test: the cache knows its digest."""
    from export_tools.sources.open import open_source  # noqa: PLC0415  OpenVINO, which unit tests do without
    from export_tools.split import SplitOptions, split  # noqa: PLC0415

    home = cache_folder() / "tests" / _digest_of_exporter()
    splits = {stages: home / str(stages) for stages in (1, 2, 3)}
    with one_at_a_time():
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


@pytest.fixture(scope="session")
def draft(shards: Shards) -> Path:
    """The draft that comes along, prepared for the demo model."""
    with one_at_a_time():
        return asyncio.run(demo_draft(shards(1), print))


def _is_split(folder: Path) -> bool:
    try:
        load_manifest(folder)
    except ManifestError:
        return False
    return True


def _digest_of_exporter() -> str:
    sources = sorted((ROOT / "export_tools").rglob("*.py")) + sorted((ROOT / "engine" / "contract").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
