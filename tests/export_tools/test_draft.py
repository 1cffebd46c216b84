"""The draft that comes along, prepared for the demo model."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.contract.drafts import DraftRequest
from engine.contract.errors import CutError, ManifestError, UsageError
from engine.contract.manifest import HEAD_TOKENS, check_files, load_manifest, tokenizer_digest
from engine.local.model import DRAFT
from export_tools import draft as draft_module
from export_tools.draft import DEFAULT_ROWS, DraftOptions, check_fits, prepare_draft
from export_tools.draft_head import Sampling, choose_rows, rank_tokens, read_ranking
from export_tools.verify import tokenize, verify
from stages.chain import Chain, generate, make_rows
from stages.draft_load import load_draft
from stages.loader import load_runner
from stages.settings import MIB, RunnerOptions
from tests.conftest import Shards

pytestmark = pytest.mark.model
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def silent(_: str) -> None:
    pass


def options(kind: Any) -> RunnerOptions:
    return RunnerOptions(kind=kind, threads=1, kv_bytes=64 * MIB, slots=1)


@pytest.fixture(scope="module")
def draft(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped draft for the demo model; do not change the folder."""
    out = tmp_path_factory.mktemp("draft") / "prepared"
    prepare_draft(DRAFT, DraftOptions(target=shards(2), out=out), silent)
    return out


@pytest.fixture(scope="module")
def whole(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with all rows of its head; do not change the folder."""
    out = tmp_path_factory.mktemp("whole") / "prepared"
    prepare_draft(DRAFT, DraftOptions(target=shards(2), out=out, head_tokens=0), silent)
    return out


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the shipped draft, to be altered."""
    return Path(shutil.copytree(DRAFT, tmp_path / "copy"))


def refused(source: Path, target: Path, out: Path, *, force: bool = False) -> str:
    before = sorted(out.parent.iterdir())
    with pytest.raises(UsageError) as caught:
        prepare_draft(source, DraftOptions(target=target, out=out, force=force), silent)
    assert sorted(out.parent.iterdir()) == before
    return str(caught.value)


def test_a_prepared_draft_is_a_split_of_one_stage_that_knows_its_target(draft: Path, shards: Shards) -> None:
    manifest = load_manifest(draft)
    assert (manifest.name, manifest.layers, len(manifest.stages)) == ("smollm2-135m-draft", 4, 1)
    assert manifest.drafts_for == tokenizer_digest(load_manifest(shards(3)))
    check_files(draft, (*manifest.stages[0].files, *manifest.tokenizer_files))


@pytest.mark.parametrize("kind", ["paged", "stateful"])
def test_a_prepared_draft_runs(draft: Path, kind: Any) -> None:
    manifest = load_manifest(draft)
    runner = load_runner(draft, manifest, 0, options(kind))
    tokens = np.array(tokenize(draft, manifest, QUESTION), np.int32)
    rows = make_rows([(0, 0, len(tokens), 0, len(tokens))], runner.capabilities.block_size)
    logits = runner.infer(rows, tokens)
    assert logits.shape == (len(tokens), DEFAULT_ROWS)
    assert np.isfinite(logits).all()
    runner.close()


def test_a_prepared_draft_guesses_what_the_target_says(draft: Path, shards: Shards) -> None:
    prompt = tokenize(draft, load_manifest(draft), QUESTION)
    with Chain.open(shards(1), options("stateful")) as chain:
        (answer,) = generate(chain, [prompt], 16, min_row_tokens=1)
    said = [*prompt, *answer]
    with Chain.open(draft, options("stateful")) as chain:
        logits = chain.infer(make_rows([(0, 0, len(said), 0, len(said))], 0), np.array(said, np.int32))
    guesses = np.load(draft / "stage0" / HEAD_TOKENS)[logits.argmax(axis=1)][len(prompt) - 1 : -1]
    assert (guesses == np.array(answer)).mean() > 0.5


def test_a_draft_with_two_tokens_exchanged_is_refused_by_the_first(copy: Path, shards: Shards, tmp_path: Path) -> None:
    path = copy / "tokenizer.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = fields["model"]["vocab"]
    of, the = vocabulary["Ġof"], vocabulary["Ġthe"]
    vocabulary["Ġof"], vocabulary["Ġthe"] = the, of
    path.write_text(json.dumps(fields), encoding="utf-8")
    first = (
        f"token {of} is ' the' in the draft and ' of'" if of < the else f"token {the} is ' of' in the draft and ' the'"
    )
    assert first in refused(copy, shards(2), tmp_path / "out")


def test_a_draft_with_another_end_of_text_is_refused(copy: Path, shards: Shards, tmp_path: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        fields = json.loads((copy / name).read_text())
        (copy / name).write_text(json.dumps({**fields, "eos_token_id": 0}))
    assert "end-of-text token is 0 '<|endoftext|>' in the draft" in refused(copy, shards(2), tmp_path / "out")


def test_more_rows_than_tokens_are_accepted(draft: Path, shards: Shards) -> None:
    """B01 (3): 49,152 rows in the target, the names of tokenizer.json cut at as many."""
    target = load_manifest(shards(2))
    check_fits(draft, load_manifest(draft), shards(2), replace(target, vocabulary=target.vocabulary + 64))


def test_a_model_is_a_draft_for_itself(shards: Shards) -> None:
    check_fits(shards(1), load_manifest(shards(1)), shards(3), load_manifest(shards(3)))


def test_a_target_that_is_no_split_is_refused(tmp_path: Path) -> None:
    assert "--target is a folder written by split" in refused(DRAFT, tmp_path / "nothing", tmp_path / "out")


def test_a_folder_that_is_there_is_replaced_only_by_force(shards: Shards, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert "--force" in refused(DRAFT, shards(2), out)
    prepare_draft(DRAFT, DraftOptions(target=shards(2), out=out, force=True, name="mine"), silent)
    assert load_manifest(out).name == "mine"


def test_neither_source_nor_target_is_replaced_even_by_force(copy: Path, shards: Shards) -> None:
    for out in (copy, copy.parent, shards(2)):
        assert "choose another --out" in refused(copy, shards(2), out, force=True)


def test_a_draft_without_a_tokenizer_is_refused(copy: Path, shards: Shards, tmp_path: Path) -> None:
    (copy / "tokenizer.json").unlink()
    assert "a model needs its tokenizer" in refused(copy, shards(2), tmp_path / "out")


def logits_of(folder: Path, tokens: list[int]) -> Any:
    fast = RunnerOptions(kind="paged", profile="fast", threads=1, kv_bytes=64 * MIB)
    with Chain.open(folder, fast) as chain:
        rows = make_rows([(0, 0, len(tokens), 0, len(tokens))], chain.block_size)
        return chain.infer(rows, np.array(tokens, np.int32)).copy()


def test_a_narrow_head_says_of_its_tokens_what_the_whole_one_says(draft: Path, whole: Path) -> None:
    tokens = tokenize(draft, load_manifest(draft), QUESTION)
    head = np.load(draft / "stage0" / HEAD_TOKENS)
    assert np.array_equal(logits_of(draft, tokens), logits_of(whole, tokens)[:, head])


def test_the_head_keeps_the_first_tokens_of_the_ranking_that_comes_along(draft: Path) -> None:
    head, manifest = np.load(draft / "stage0" / HEAD_TOKENS), load_manifest(draft)
    assert np.array_equal(head, np.load(DRAFT / HEAD_TOKENS)[:DEFAULT_ROWS])
    assert {*manifest.eos_ids, manifest.bos_id} <= set(head.tolist())
    assert manifest.vocabulary == 49152


def test_a_prepared_draft_is_served_with_either_head(draft: Path, whole: Path, shards: Shards) -> None:
    target = load_manifest(shards(2))
    prompt = tuple(tokenize(draft, load_manifest(draft), QUESTION))
    found = [load_draft(folder, target).propose([DraftRequest("a", prompt, 4)])[0] for folder in (draft, whole)]
    assert found[0] == found[1]
    assert found[0].state == "ready"


def test_a_list_of_head_tokens_that_was_altered_is_refused(draft: Path, shards: Shards, tmp_path: Path) -> None:
    altered = Path(shutil.copytree(draft, tmp_path / "altered"))
    path = altered / "stage0" / HEAD_TOKENS
    np.save(path, np.load(path)[::-1])
    with pytest.raises(ManifestError, match=r"head_tokens\.npy differs"):
        load_draft(altered, load_manifest(shards(2)))


def test_a_draft_with_a_narrow_head_verifies(draft: Path) -> None:
    report = verify(draft, options("paged"), DRAFT)
    assert report.good
    assert report.largest_difference == 0


def test_without_a_ranking_the_head_stays_whole_unless_rows_are_asked_for(
    copy: Path, shards: Shards, tmp_path: Path
) -> None:
    (copy / HEAD_TOKENS).unlink()
    whole = prepare_draft(copy, DraftOptions(target=shards(2), out=tmp_path / "whole"), silent)
    assert HEAD_TOKENS not in {Path(file.path).name for file in whole.stages[0].files}
    asked = DraftOptions(target=shards(2), out=tmp_path / "narrow", head_tokens=4096)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_module, "Sampling", lambda: Sampling(sequences=4, tokens=8))
        narrow = prepare_draft(copy, asked, silent)
    assert len(np.load(tmp_path / "narrow" / "stage0" / HEAD_TOKENS)) == 4096
    assert narrow.stages[0].weight_bytes > whole.stages[0].weight_bytes
    assert narrow.split != whole.split


def test_a_head_that_cannot_be_narrowed_stays_whole(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(*_: object) -> None:
        raise CutError("an operation it does not know")

    monkeypatch.setattr(draft_module, "narrow_stage", unable)
    said: list[str] = []
    manifest = prepare_draft(DRAFT, DraftOptions(target=shards(2), out=tmp_path / "out"), said.append)
    assert "its head stays whole: an operation it does not know" in said
    check_files(tmp_path / "out", manifest.stages[0].files)


def test_tokens_are_ranked_by_what_the_draft_is_likely_to_say(whole: Path) -> None:
    order = rank_tokens(whole, Sampling(sequences=4, tokens=16, seed=1), silent)
    assert order.dtype == np.int32
    assert sorted(order.tolist()) == list(range(49152))
    manifest = load_manifest(whole)
    assert set(manifest.eos_ids) <= set(order[:8].tolist())
    common = tokenize(whole, manifest, " the of and")
    assert set(common) <= set(order[:200].tolist())


def test_tokens_that_a_chat_needs_are_kept_whatever_the_ranking(whole: Path) -> None:
    manifest = load_manifest(whole)
    head = choose_rows(whole, manifest, np.arange(1000, 3000, dtype=np.int32), 500)
    assert len(head) == 500
    assert {*manifest.eos_ids, manifest.bos_id} <= set(head.tolist())


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        (np.array([1, 1], np.int32), "different token ids"),
        (np.array([1.5]), "different token ids"),
        (np.array([0, 100], np.int32), "its vocabulary is 100"),
        (np.array([{}], object), "cannot be read"),
    ],
)
def test_a_ranking_that_is_none_is_refused(ids: Any, why: str, tmp_path: Path) -> None:
    np.save(tmp_path / HEAD_TOKENS, ids)
    with pytest.raises(UsageError, match=why):
        read_ranking(tmp_path / HEAD_TOKENS, 100)
