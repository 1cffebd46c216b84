import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest

from engine.contract.errors import ManifestError
from engine.contract.manifest import HEAD_TOKENS, load_manifest, tokenizer_digest
from engine.local import model
from engine.local.model import DRAFT, demo_draft
from tests.conftest import Shards


def test_the_draft_comes_with_the_package() -> None:
    for name in ("openvino_model.xml", "openvino_model.bin", "tokenizer.json", "head_tokens.npy", "README.md"):
        assert (DRAFT / name).is_file()


def test_a_draft_for_nothing_is_not_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDLINE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ManifestError, match=r"no manifest\.json"):
        asyncio.run(demo_draft(tmp_path, print))
    assert not (tmp_path / "cache").exists()


@pytest.mark.model
def test_the_draft_is_prepared_once_for_each_tokenizer(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDLINE_CACHE", str(tmp_path))
    said: list[str] = []
    first, again = (asyncio.run(demo_draft(shards(stages), said.append)) for stages in (2, 3))
    assert (first, said) == (again, ["preparing smollm2-135m-draft"])
    assert load_manifest(first).drafts_for == tokenizer_digest(load_manifest(shards(2)))


@pytest.mark.model
def test_a_draft_with_other_head_tokens_is_prepared_anew(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDLINE_CACHE", str(tmp_path))
    copy = Path(shutil.copytree(DRAFT, tmp_path / DRAFT.name))
    monkeypatch.setattr(model, "DRAFT", copy)
    first = asyncio.run(demo_draft(shards(2), print))
    np.save(copy / HEAD_TOKENS, np.load(copy / HEAD_TOKENS)[:2000])
    second = asyncio.run(demo_draft(shards(2), print))
    assert first != second
    assert len(np.load(second / "stage0" / HEAD_TOKENS)) == 2000
