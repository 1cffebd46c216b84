"""The static runner on the real model: the stateful one's tokens, slots that never touch each other, and sliding."""

from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine.contract.copies import SlotCopy
from engine.contract.errors import ManifestError, StepError, UsageError
from engine.contract.manifest import load_manifest
from engine.contract.static import StaticLimits
from stages.chain import Chain, generate, make_rows
from stages.loader import load_runner, shard_shape
from stages.selftest import self_test
from stages.settings import RunnerOptions, compile_properties
from tests.conftest import Shards

pytestmark = pytest.mark.model
LIMITS = StaticLimits(context=128, slots=4, verify_tokens=4, prefill_chunk=32)
SLIDING = replace(LIMITS, context=32, prefill_chunk=16, sinks=4, slots=2)
TOKENS = np.random.default_rng(5).integers(0, 40_000, 200).astype(np.int32)
NEAR = 2e-3  # logits: other kernels round differently
Piece = tuple[int, int, npt.NDArray[np.int32]]


def opened(folder: Path, limits: StaticLimits | None = LIMITS, **changes: Any) -> Chain:
    """The stages of a split with the static runner, as if it had been made for these limits."""
    manifest = replace(load_manifest(folder), static=limits)
    options = replace(RunnerOptions(kind="static", threads=2), **changes)
    return Chain([load_runner(folder, manifest, i, options) for i in range(len(manifest.stages))])


@pytest.fixture(scope="module")
def whole(shards: Shards) -> Generator[Chain]:
    with opened(shards(1)) as chain:
        yield chain


@pytest.fixture(scope="module")
def stateful(shards: Shards) -> Generator[Chain]:
    with Chain.open(shards(1), RunnerOptions(kind="stateful", threads=2, slots=4)) as chain:
        yield chain


@pytest.fixture(autouse=True)
def _empty(request: pytest.FixtureRequest) -> None:
    for name in {"whole", "stateful"} & set(request.fixturenames):
        for runner in request.getfixturevalue(name).runners:
            runner.reset()


def feed(chain: Chain, *pieces: Piece, picked: int | None = None) -> npt.NDArray[np.float32]:
    """Rows (slot, start, tokens) in one step; logits of the first `picked` positions of each, all by default."""
    rows = [(slot, start, len(t), 0, len(t) if picked is None else picked) for slot, start, t in pieces]
    return chain.infer(make_rows(rows, 0), np.concatenate([t for _, _, t in pieces])).copy()


def prompts(*lengths: int) -> list[list[int]]:
    return [TOKENS[i * 7 : i * 7 + length].tolist() for i, length in enumerate(lengths)]


def test_it_gives_the_tokens_of_the_stateful_shard(whole: Chain, stateful: Chain) -> None:
    some = prompts(70, 3, 33, 64)
    assert generate(whole, some, 40, min_row_tokens=1) == generate(stateful, some, 40, min_row_tokens=1)


def test_chunks_verify_rows_and_rejected_drafts_give_its_logits(whole: Chain, stateful: Chain) -> None:
    for chain in (whole, stateful):
        feed(chain, (0, 0, TOKENS[:50]), (2, 0, TOKENS[100:109]), picked=0)
    steps: list[list[Piece]] = [
        [(0, 50, TOKENS[50:51]), (2, 9, TOKENS[109:113])],
        [(0, 51, TOKENS[120:124]), (2, 13, TOKENS[113:119]), (3, 0, TOKENS[:40])],  # drafts, all wrong in hindsight
        [(2, 15, TOKENS[60:64]), (0, 51, TOKENS[51:53])],
    ]
    for step in steps:
        assert np.abs(feed(whole, *step) - feed(stateful, *step)).max() < NEAR


def test_stages_give_what_the_whole_gives(whole: Chain, shards: Shards) -> None:
    with opened(shards(3)) as chain:
        for step in ([(1, 0, TOKENS[:45])], [(1, 45, TOKENS[45:49]), (0, 0, TOKENS[:2])]):
            assert np.array_equal(feed(chain, *step), feed(whole, *step))


def test_neighbours_change_no_bit(whole: Chain) -> None:
    """Whoever they are, whatever they ask, and whether they were there before."""
    noise = np.random.default_rng(1)

    def mine(neighbours: bool) -> list[npt.NDArray[np.float32]]:
        for runner in whole.runners:
            runner.reset()
        found, at = [], 0
        for length in (37, 1, 4, 2, 9, 1):
            others: list[Piece] = [
                (slot, 0, noise.integers(0, 40_000, int(noise.integers(1, 60))).astype(np.int32)) for slot in (0, 1, 3)
            ]
            step = [others[0], (2, at, TOKENS[at : at + length]), *others[1:]] if neighbours else []
            first = len(others[0][2]) if neighbours else 0
            logits = feed(whole, *(step or [(2, at, TOKENS[at : at + length])]))
            found.append(logits[first : first + length])
            at += length
        return found

    alone = mine(neighbours=False)
    for _ in range(2):
        assert all(np.array_equal(a, b) for a, b in zip(alone, mine(neighbours=True), strict=True))


def test_idle_slots_compute_numbers(whole: Chain) -> None:
    """A softmax over nothing would be no number, and a head would spread it."""
    feed(whole, (1, 0, TOKENS[:1]))
    graph = whole.runners[0]._graphs[False]  # type: ignore[reportAttributeAccessIssue]
    assert all(np.isfinite(graph.request.get_output_tensor(i).data).all() for i in range(3))


def test_sequences_of_all_slots_share_an_inference(whole: Chain) -> None:
    feed(whole, *((slot, 0, TOKENS[:4]) for slot in range(4)), picked=0)
    before = whole.runners[0].inferences  # type: ignore[reportAttributeAccessIssue]
    feed(whole, *((slot, 4, TOKENS[4:8]) for slot in range(4)))
    assert whole.runners[0].inferences == before + 1  # type: ignore[reportAttributeAccessIssue]


def test_a_copied_beginning_continues_as_one_that_was_computed(whole: Chain) -> None:
    """To the last bit it does not matter what becomes of the source: columns are copied, not looked into."""

    def warm(source_goes_on: bool) -> npt.NDArray[np.float32]:
        feed(whole, (0, 0, TOKENS[:40]), (3, 0, TOKENS[90:95]), picked=0)
        whole.copy_slots([SlotCopy(0, 3, 36)])
        if source_goes_on:
            feed(whole, (0, 0, TOKENS[70:100]), picked=0)
        return feed(whole, (3, 36, TOKENS[36:40]))

    copied = warm(source_goes_on=True)
    assert np.array_equal(copied, warm(source_goes_on=False))
    feed(whole, (3, 0, TOKENS[:40]), picked=0)
    assert np.abs(copied - feed(whole, (3, 36, TOKENS[36:40]))).max() < NEAR


def test_more_than_it_was_made_for_is_refused_by_name(whole: Chain) -> None:
    for piece, says in (
        ((4, 0, TOKENS[:2]), r"names a slot outside \[0, 4\)"),
        ((0, 126, TOKENS[:3]), "ends beyond the context of 128 tokens"),
        ((0, 7, TOKENS[:1]), "starts at 7, its slot holds 0 tokens"),
    ):
        with pytest.raises(StepError, match=says):
            feed(whole, piece)


def reference(stateful: Chain, sequence: Sequence[int], limits: StaticLimits) -> npt.NDArray[np.float32]:
    """Logits behind a sequence that has slid, by the stateful shard of one stage, each token fed with its own mask."""
    runner: Any = stateful.runners[0]
    request = runner.compiled.create_infer_request()
    ports = {port.get_any_name() for port in runner.compiled.inputs}
    out = None
    for at, token in enumerate(sequence):
        mask = np.ones((1, at + 1), np.int64)
        mask[0, limits.sinks : max(at + 1 - (limits.context - limits.sinks), limits.sinks)] = 0
        inputs = {
            "input_ids": np.array([[token]], np.int64),
            "attention_mask": mask,
            "position_ids": np.array([[at]], np.int64),
            "beam_idx": np.zeros(1, np.int32),
            "picked": np.zeros(1, np.int64),
        }
        request.infer({name: array for name, array in inputs.items() if name in ports})
        out = request.get_output_tensor(0).data.reshape(1, -1).copy()
    assert out is not None
    return out


def test_a_sequence_that_slides_sees_what_the_same_mask_shows_the_stateful_shard(
    shards: Shards, stateful: Chain
) -> None:
    with opened(shards(1), SLIDING) as chain:
        assert chain.runners[0].capabilities.context_length == load_manifest(shards(1)).context_length
        for at in range(0, 96, 12):
            feed(chain, (0, at, TOKENS[at : at + 12]), picked=0)
        feed(chain, (0, 96, TOKENS[150:154]), (1, 0, TOKENS[:9]), picked=0)  # drafts, rejected
        for at in range(96, 118, 2):
            feed(chain, (0, at, TOKENS[at : at + 2]))
        logits = feed(chain, (0, 118, TOKENS[118:120]))
        assert np.abs(logits[1:] - reference(stateful, TOKENS[:120].tolist(), SLIDING)).max() < NEAR


def test_sliding_does_not_depend_on_how_rows_are_cut(shards: Shards) -> None:
    with opened(shards(1), SLIDING) as chain:
        found = []
        for slot, sizes in ((0, [16] * 6), (1, [5, 3, 16, 1, 7] * 3)):
            at = 0
            for size in sizes:
                feed(chain, (slot, at, TOKENS[at : at + size]), picked=0)
                at += size
            assert at == 96
            found.append(feed(chain, (slot, 96, TOKENS[96:98])))
    assert np.abs(found[0] - found[1]).max() < NEAR


def test_one_graph_alone_gives_the_same_tokens(whole: Chain, shards: Shards) -> None:
    some = prompts(20, 6)
    with opened(shards(2), replace(LIMITS, prefill_chunk=0)) as chain:
        assert generate(chain, some, 12, min_row_tokens=1) == generate(whole, some, 12, min_row_tokens=1)


def test_fast_keeps_its_cache_in_16_bits(shards: Shards, whole: Chain) -> None:
    some = prompts(20)
    with opened(shards(1), profile="fast") as chain:
        runner: Any = chain.runners[0]
        assert {array.dtype for array in runner._cache.values()} == {np.dtype(np.float16)}
        fast = feed(chain, (0, 0, np.array(some[0], np.int32)))
    assert np.abs(fast - feed(whole, (0, 0, np.array(some[0], np.int32)))).max() < 1.0


def test_the_self_test_says_what_holds(shards: Shards, whole: Chain) -> None:
    found = self_test(whole.runners[0], shard_shape(load_manifest(shards(1)), 0)).equalities
    assert found["neighbours"]
    assert set(found) == {"speculation", "neighbours", "replay"}


def test_a_split_that_was_not_made_for_it_says_how_to_make_one(shards: Shards) -> None:
    with pytest.raises(ManifestError, match="shard-export split … --static"):
        opened(shards(1), None)


def test_an_npu_takes_static_shards_only_and_no_property_it_does_not_know() -> None:
    with pytest.raises(UsageError, match="--device NPU needs --runner static"):
        RunnerOptions(kind="paged", device="NPU")
    assert compile_properties(RunnerOptions(kind="static", device="NPU", cache=Path("c"))) == {"CACHE_DIR": "c"}
