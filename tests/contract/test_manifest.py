from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from engine.contract.errors import ManifestError
from engine.contract.manifest import MANIFEST_NAME, FileDigest, load_manifest, tokenizer_digest
from tests.manifests import manifest

FILES = tuple(FileDigest(path=f"tokenizer/{name}", bytes=1, sha256=name * 64) for name in "ab")
MANIFEST = manifest(tokenizer_files=FILES)


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    draft = replace(MANIFEST, drafts_for=tokenizer_digest(MANIFEST))
    draft.save(tmp_path)
    assert load_manifest(tmp_path) == draft


def test_a_manifest_from_before_there_were_drafts_is_read(tmp_path: Path) -> None:
    MANIFEST.save(tmp_path)
    path = tmp_path / MANIFEST_NAME
    fields = orjson.loads(path.read_bytes())
    del fields["drafts_for"]
    path.write_bytes(orjson.dumps(fields))
    assert load_manifest(tmp_path) == MANIFEST


def test_the_digest_of_a_tokenizer_is_that_of_its_files_whatever_their_names_and_order() -> None:
    renamed = tuple(replace(entry, path=f"elsewhere/{at}") for at, entry in enumerate(reversed(FILES)))
    assert tokenizer_digest(replace(MANIFEST, tokenizer_files=renamed, name="m")) == tokenizer_digest(MANIFEST)


def test_another_tokenizer_has_another_digest() -> None:
    others = (replace(MANIFEST, tokenizer_files=FILES[:1]), replace(MANIFEST, tokenizer_kind="openvino"))
    assert len({tokenizer_digest(one) for one in (MANIFEST, *others)}) == 3


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "", "a//b", "./a", "C:\\x", "c:x", "..\\x", "a\0b"]
)
def test_a_file_outside_the_split_is_refused(tmp_path: Path, path: str) -> None:
    replace(MANIFEST, tokenizer_files=(replace(FILES[0], path=path),)).save(tmp_path)
    with pytest.raises(ManifestError, match="not inside the split"):
        load_manifest(tmp_path)


@pytest.mark.parametrize("sha256", ["", "../" * 20, "A" * 64, "a" * 63])
def test_a_digest_that_is_none_is_refused(tmp_path: Path, sha256: str) -> None:
    replace(MANIFEST, tokenizer_files=(replace(FILES[0], sha256=sha256),)).save(tmp_path)
    with pytest.raises(ManifestError, match="no sha256"):
        load_manifest(tmp_path)


def test_a_shard_that_nobody_can_check_is_refused(tmp_path: Path) -> None:
    first, *others = MANIFEST.stages
    replace(MANIFEST, stages=(replace(first, model="../model.xml"), *others)).save(tmp_path)
    with pytest.raises(ManifestError, match="without a digest"):
        load_manifest(tmp_path)
