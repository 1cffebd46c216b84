"""Both runners on shards of the demo model."""

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine.contract.copies import SlotCopy
from engine.contract.errors import DeviceError, ManifestError, StepError, UsageError
from engine.contract.manifest import load_manifest
from engine.contract.messages import Rows
from stages.chain import Chain, generate, make_rows, prefill
from stages.loader import check_shard, load_runner, shard_shape
from stages.memory import MOST_SEQUENCES, KvShare
from stages.paged import PagedRunner
from stages.runner import Runner
from stages.selftest import self_test
from stages.settings import MIB, RunnerOptions
from stages.slot import SPARE
from stages.stateful import StatefulRunner
from tests.conftest import Shards

pytestmark = pytest.mark.model
KINDS: tuple[Any, ...] = ("paged", "stateful")
TOKENS = np.random.default_rng(5).integers(0, 40_000, 200).astype(np.int32)
BLOCKS_OF_A_SLOT = 8
NEAR = 1e-3  # logits: kernels of stateful shards round rows of different length differently


def options(kind: Any, **changes: Any) -> RunnerOptions:
    return replace(RunnerOptions(kind=kind, threads=2, kv_bytes=64 * MIB, slots=4), **changes)


def load(folder: Path, kind: Any, index: int = 0, **changes: Any) -> PagedRunner | StatefulRunner:
    runner = load_runner(folder, load_manifest(folder), index, options(kind, **changes))
    assert isinstance(runner, PagedRunner | StatefulRunner)
    return runner


@pytest.fixture(scope="module", params=KINDS)
def whole(request: pytest.FixtureRequest, shards: Shards) -> Generator[PagedRunner | StatefulRunner]:
    """The model in one stage: token ids in, logits out."""
    runner = load(shards(1), request.param)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def stateful(shards: Shards) -> Generator[StatefulRunner]:
    runner = load(shards(1), "stateful")
    assert isinstance(runner, StatefulRunner)
    yield runner
    runner.close()


@pytest.fixture(autouse=True)
def _empty(request: pytest.FixtureRequest) -> None:
    for name in ("whole", "stateful"):
        if name in request.fixturenames:
            request.getfixturevalue(name).reset()


def rows(runner: Runner, *lines: tuple[int, int, int, int, int]) -> Rows:
    """Rows (slot, start, length, picked start, picked count)."""
    size = runner.capabilities.block_size
    table: list[list[int]] = []
    blocks: list[npt.NDArray[np.int32]] = []
    for slot, start, length, picked_start, picked in lines:
        used = -(-(start + length) // size) if size else 0
        table.append([start, length, slot, picked_start, picked, used])
        blocks.append(np.arange(used, dtype=np.int32) + slot * BLOCKS_OF_A_SLOT)
    return Rows(np.array(table, np.int32), np.concatenate(blocks))


def feed(
    runner: Runner, *pieces: tuple[int, int, npt.NDArray[np.int32]], picked: int | None = None
) -> npt.NDArray[np.float32]:
    """Rows (slot, start, tokens) in one step; logits of the first `picked` positions of each, all by default."""
    lines = [(slot, start, len(t), 0, len(t) if picked is None else picked) for slot, start, t in pieces]
    return runner.infer(rows(runner, *lines), np.concatenate([t for _, _, t in pieces])).copy()


def test_every_position_wanted_is_answered_and_no_other(whole: Runner) -> None:
    step = rows(whole, (0, 0, 6, 5, 1), (1, 0, 4, 0, 0), (2, 0, 5, 1, 3))
    out = whole.infer(step, TOKENS[:15])
    assert (out.shape, out.dtype) == ((4, 49152), np.float32)


def test_a_step_that_wants_nothing_returns_nothing(whole: Runner) -> None:
    assert feed(whole, (0, 0, TOKENS[:5]), picked=0).shape == (0, 49152)


def test_picked_positions_are_those_positions(whole: Runner) -> None:
    every = feed(whole, (0, 0, TOKENS[:6]))
    some = whole.infer(rows(whole, (0, 0, 6, 2, 3)), TOKENS[:6])
    assert np.array_equal(some, every[2:5])


def test_one_wanted_position_equals_the_same_among_several(whole: Runner) -> None:
    """To the last bit on paged exact; a head applied to one position is another kernel."""
    every = feed(whole, (0, 0, TOKENS[:4]))
    difference = np.abs(feed(whole, (0, 0, TOKENS[:4]), picked=1) - every[:1]).max()
    assert difference <= (0 if whole.capabilities.kind == "paged" else 1e-3)


def test_a_row_that_starts_early_overwrites_rejected_drafts(whole: Runner) -> None:
    feed(whole, (0, 0, TOKENS[:6]), picked=0)
    feed(whole, (0, 6, TOKENS[100:104]))  # drafts, of which the first two are wrong in hindsight
    again = feed(whole, (0, 6, TOKENS[6:10]))
    feed(whole, (1, 0, TOKENS[:6]), picked=0)
    assert np.abs(again - feed(whole, (1, 6, TOKENS[6:10]))).max() < 1e-3


def test_neighbours_change_nothing(whole: Runner) -> None:
    feed(whole, (0, 0, TOKENS[:6]), picked=0)
    alone = feed(whole, (0, 6, TOKENS[6:8]))
    whole.reset()
    feed(whole, (0, 0, TOKENS[:6]), (2, 0, TOKENS[50:57]), picked=0)
    beside = feed(whole, (2, 7, TOKENS[57:60]), (0, 6, TOKENS[6:8]), (1, 0, TOKENS[20:25]))
    assert np.array_equal(beside[3:5], alone)


def test_the_length_of_rows_changes_nothing_that_matters(whole: Runner) -> None:
    """To the last bit on paged; on stateful the kernels of longer rows round differently."""
    feed(whole, (0, 0, TOKENS[:30]), picked=0)
    pairs = np.concatenate([feed(whole, (0, at, TOKENS[at : at + 2])) for at in range(30, 38, 2)])
    feed(whole, (1, 0, TOKENS[:30]), picked=0)
    difference = np.abs(pairs - feed(whole, (1, 30, TOKENS[30:38]))).max()
    assert difference <= (0 if whole.capabilities.kind == "paged" else 1e-3)


def test_the_stages_of_a_split_equal_the_whole(whole: Runner, shards: Shards) -> None:
    folder = shards(3)
    chain = [load(folder, whole.capabilities.kind, index) for index in range(3)]
    value: npt.NDArray[Any] = TOKENS[:9]
    for runner in chain:
        value = runner.infer(rows(runner, (0, 0, 9, 0, 9)), value)
    assert np.array_equal(value, feed(whole, (0, 0, TOKENS[:9])))


def test_a_reset_runner_starts_over(whole: Runner) -> None:
    first = feed(whole, (0, 0, TOKENS[:5]))
    whole.reset()
    assert np.array_equal(feed(whole, (0, 0, TOKENS[:5])), first)


@pytest.mark.parametrize(
    ("line", "says"),
    [((9999, 0, 5), "block|slot"), ((0, -1, 5), "before"), ((0, 9000, 5), "context"), ((0, 0, 0), "no tokens")],
)
def test_bad_rows_are_refused_before_native_code(whole: Runner, line: tuple[int, int, int], says: str) -> None:
    slot, start, length = line
    bad = rows(whole, (slot, start, length, 0, 0))
    with pytest.raises(StepError, match=says):
        whole.infer(bad, TOKENS[:length])


def test_a_row_beyond_what_its_slot_holds_is_refused_and_no_state_changes(stateful: StatefulRunner) -> None:
    feed(stateful, (0, 0, TOKENS[:4]), picked=0)
    with pytest.raises(StepError, match="row 1 starts at 3, its slot holds 0"):
        feed(stateful, (0, 4, TOKENS[4:6]), (1, 3, TOKENS[:2]))
    found = feed(stateful, (0, 4, TOKENS[4:6]))
    stateful.reset()
    feed(stateful, (0, 0, TOKENS[:4]), picked=0)
    assert np.array_equal(found, feed(stateful, (0, 4, TOKENS[4:6])))


def test_rows_of_one_slot_in_one_step_follow_each_other(stateful: StatefulRunner) -> None:
    both = feed(stateful, (0, 0, TOKENS[:4]), (0, 4, TOKENS[4:8]))
    feed(stateful, (1, 0, TOKENS[:4]))
    assert np.array_equal(both[4:], feed(stateful, (1, 4, TOKENS[4:8])))


def test_requests_of_one_model_do_not_share_their_states_here(stateful: StatefulRunner) -> None:
    assert stateful.shares_model


def test_slots_with_models_of_their_own_give_the_same(shards: Shards) -> None:
    shared, own = (load(shards(2), "stateful") for _ in range(2))
    assert isinstance(own, StatefulRunner)
    own.shares_model = False  # as if the start-up probe had seen states interfere
    for runner in (shared, own):
        feed(runner, (0, 0, TOKENS[:4]), (1, 0, TOKENS[4:9]))
    found, wanted = (feed(runner, (1, 5, TOKENS[9:11]), (0, 4, TOKENS[4:6])) for runner in (own, shared))
    assert np.array_equal(found, wanted)


def test_many_rejected_drafts_are_compacted_away(stateful: StatefulRunner) -> None:
    feed(stateful, (0, 0, TOKENS[:6]), picked=0)
    before = stateful.compactions
    for _ in range(SPARE.fixed // 16 + 2):
        feed(stateful, (0, 6, TOKENS[100:116]), picked=0)
    found = feed(stateful, (0, 6, TOKENS[6:10]))
    assert stateful.compactions > before
    feed(stateful, (1, 0, TOKENS[:6]), picked=0)
    assert np.abs(found - feed(stateful, (1, 6, TOKENS[6:10]))).max() < 1e-3


def test_a_copied_slot_continues_as_its_source_would(stateful: StatefulRunner) -> None:
    feed(stateful, (0, 0, TOKENS[:40]), picked=0)
    stateful.copy_slots([SlotCopy(0, 1, 40)])
    both = feed(stateful, (0, 40, TOKENS[40:44]), (1, 40, TOKENS[40:44]))
    assert np.array_equal(both[:4], both[4:])


def test_a_copy_ends_where_it_is_told_and_its_source_loses_nothing(stateful: StatefulRunner) -> None:
    feed(stateful, (0, 0, TOKENS[:40]), picked=0)
    stateful.copy_slots([SlotCopy(0, 1, 30), SlotCopy(1, 2, 20)])
    found = feed(stateful, (1, 30, TOKENS[100:104]), (2, 20, TOKENS[60:64]), (0, 40, TOKENS[40:44]))
    stateful.reset()
    feed(stateful, (0, 0, TOKENS[:40]), (1, 0, TOKENS[:30]), (2, 0, TOKENS[:20]), picked=0)
    wanted = feed(stateful, (1, 30, TOKENS[100:104]), (2, 20, TOKENS[60:64]), (0, 40, TOKENS[40:44]))
    assert np.abs(found - wanted).max() < NEAR


def test_what_was_rejected_is_not_copied(stateful: StatefulRunner) -> None:
    feed(stateful, (0, 0, TOKENS[:20]), picked=0)
    feed(stateful, (0, 20, TOKENS[100:116]), picked=0)  # drafts, all wrong
    feed(stateful, (0, 20, TOKENS[20:40]), picked=0)
    stateful.copy_slots([SlotCopy(0, 3, 40)])
    found = feed(stateful, (3, 40, TOKENS[40:44]))
    feed(stateful, (1, 0, TOKENS[:40]), picked=0)
    assert np.abs(found - feed(stateful, (1, 40, TOKENS[40:44]))).max() < NEAR


def test_a_state_that_cannot_be_taken_apart_is_copied_with_its_rejected_positions(stateful: StatefulRunner) -> None:
    axes, stateful._axes = stateful._axes, {}
    try:
        feed(stateful, (0, 0, TOKENS[:20]), picked=0)
        feed(stateful, (0, 18, TOKENS[100:110]), picked=0)
        feed(stateful, (0, 18, TOKENS[18:40]), picked=0)
        stateful.copy_slots([SlotCopy(0, 1, 30)])
        found = feed(stateful, (1, 30, TOKENS[30:34]))
    finally:
        stateful._axes = axes
    feed(stateful, (2, 0, TOKENS[:30]), picked=0)
    assert np.abs(found - feed(stateful, (2, 30, TOKENS[30:34]))).max() < NEAR


def test_a_bad_copy_is_refused_and_none_is_made(stateful: StatefulRunner) -> None:
    feed(stateful, (0, 0, TOKENS[:10]), (1, 0, TOKENS[50:55]), picked=0)
    with pytest.raises(StepError, match="from slot 0 to slot 2 wants 11 tokens of 10"):
        stateful.copy_slots([SlotCopy(0, 1, 10), SlotCopy(0, 2, 11)])
    found = feed(stateful, (1, 5, TOKENS[55:57]))
    feed(stateful, (2, 0, TOKENS[50:55]), picked=0)
    assert np.array_equal(found, feed(stateful, (2, 5, TOKENS[55:57])))


def test_a_paged_shard_refuses_copies(shards: Shards) -> None:
    runner = load(shards(1), "paged")
    with pytest.raises(StepError, match="keeps none"):
        runner.copy_slots([SlotCopy(0, 1, 5)])


def test_two_stateful_stages_answer_warm_as_cold(shards: Shards) -> None:
    """Equality 5 with a state per slot: copied, and taken over with an earlier start."""
    chain = Chain([load(shards(2), "stateful", index) for index in range(2)])
    prompt = TOKENS[:90].tolist()
    cold = generate(chain, [prompt], 24, min_row_tokens=1)[0]
    chain.copy_slots([SlotCopy(0, 1, 80)])
    apart, warm = [], []
    for slot in (1, 0):  # copied; taken over
        logits = chain.infer(make_rows([(slot, 80, 10, 9, 1)], 0), TOKENS[80:90]).copy()
        apart.append(np.abs(logits - prefill(chain, 2, prompt)).max())
        answer: list[int] = []
        for at in range(90, 114):
            answer.append(int(logits.argmax()))
            logits = chain.infer(make_rows([(slot, at, 1, 0, 1)], 0), np.array(answer[-1:], np.int32)).copy()
        warm.append(answer)
    print("logits of warm and cold prompts are apart by", apart)
    assert max(apart) < NEAR
    assert warm == [cold, cold]


def test_the_self_test_promises_every_equality_on_paged_exact(shards: Shards) -> None:
    folder = shards(2)
    for index in (0, 1):
        runner = load(folder, "paged", index)
        found = self_test(runner, shard_shape(load_manifest(folder), index)).equalities
        assert found == {"speculation": True, "neighbours": True, "replay": True}


def test_the_self_test_sees_that_rows_of_one_token_break_equality(shards: Shards) -> None:
    folder = shards(2)
    runner = load(folder, "paged", 0, profile="fast")
    assert not self_test(runner, shard_shape(load_manifest(folder), 0)).equalities["speculation"]


def test_the_self_test_runs_with_a_single_slot(shards: Shards) -> None:
    folder = shards(2)
    runner = load(folder, "stateful", 0, slots=1)
    assert set(self_test(runner, shard_shape(load_manifest(folder), 0)).equalities) == {"speculation", "replay"}


def test_a_device_that_is_not_there_is_named(shards: Shards) -> None:
    with pytest.raises(UsageError, match=r"no device TPU\.7 here, only .*CPU"):
        load(shards(2), "paged", device="TPU.7")


def test_a_pool_too_small_says_how_much_it_needs(shards: Shards) -> None:
    with pytest.raises(DeviceError, match=r"--kv-memory of 1 MiB is too small: give it \d+ MiB or more"):
        load(shards(2), "paged", kv_bytes=MIB)


def test_a_share_of_memory_is_at_most_what_a_decoder_can_use(shards: Shards) -> None:
    runner = load(shards(2), "paged", kv_bytes=KvShare(0.01))
    can = runner.capabilities
    runner.close()
    tokens = can.blocks * can.block_size
    assert 8 * can.block_size <= tokens <= MOST_SEQUENCES * can.context_length


def test_a_cache_of_8_bits_holds_nearly_twice_the_tokens(shards: Shards) -> None:
    """Its scales take a byte for every eight of a head of 64."""
    with_scales = {p: load(shards(2), "paged", profile="fast", kv_precision=p).capabilities for p in ("f16", "u8")}
    assert with_scales["u8"].block_size == with_scales["f16"].block_size
    assert with_scales["u8"].blocks / with_scales["f16"].blocks == pytest.approx(128 / 72, rel=0.01)


@pytest.mark.parametrize("precision", ["f16", "u8"])
def test_rejected_drafts_do_not_change_what_was_accepted(shards: Shards, precision: str) -> None:
    """Every token of an 8-bit cache has scales of its own: with scales of a whole block they would."""
    runner = load(shards(1), "paged", profile="fast", kv_precision=precision)
    wrong = np.full(3, 12345, np.int32)
    for slot, drafts in ((0, wrong[:0]), (1, wrong)):
        feed(runner, (slot, 0, TOKENS[:20]), picked=0)
        for at in range(20, 60, 2):
            feed(runner, (slot, at, np.concatenate((TOKENS[at : at + 2], drafts))), picked=0)
    without, drafted = (feed(runner, (slot, 60, TOKENS[60:64])) for slot in (0, 1))
    runner.close()
    assert np.array_equal(without, drafted)


def test_a_pool_larger_than_memory_is_one_line(shards: Shards) -> None:
    with pytest.raises(DeviceError, match=r"stage 0 needs \d+ MiB .*, \d+ MiB are free"):
        load(shards(2), "paged", kv_bytes=1 << 50)


def test_a_missing_stage_is_named(shards: Shards) -> None:
    folder = shards(2)
    with pytest.raises(ManifestError, match="no stage 7: this split has 2 stages"):
        check_shard(folder, load_manifest(folder), 7)
