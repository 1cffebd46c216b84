from dataclasses import replace
from pathlib import Path

import orjson

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
