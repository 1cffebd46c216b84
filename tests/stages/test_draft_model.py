"""The draft model's cache stays in step, whatever becomes of its drafts. The runner is arithmetic over real blocks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine.contract.copies import SlotCopy
from engine.contract.drafts import Draft, DraftRequest
from engine.contract.errors import DeviceError
from engine.contract.messages import Rows
from stages.draft_model import CHUNK, LONG_CHUNK, DraftModel
from stages.runner import Capabilities
from tests.blockcache import BlockCache, digest

BLOCK, VOCABULARY = 8, 64


def next_token(history: Sequence[int]) -> int:
    return digest(history) % 60


class ArithmeticRunner:
    """One stage that reads every position from the blocks it is given."""

    def __init__(self, blocks: int = 64, context: int = 400) -> None:
        self.capabilities = Capabilities(
            kind="paged",
            blocks=blocks,
            block_size=BLOCK,
            slots=0,
            min_row_tokens=1,
            max_step_tokens=0,
            context_length=context,
        )
        self.cache = BlockCache(blocks, BLOCK)
        self.fed: list[list[tuple[int, int]]] = []  # per call: start and length of each row
        self.fail = False
        self.sure = 40.0  # logit of the next token; of all others 0: it is certain

    def infer(self, rows: Rows, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.fail:
            raise DeviceError("the device failed")
        wanted, fed = [], []
        for row in self.cache.feed(rows, value):
            assert -1 not in row.history
            fed.append((row.start, row.length))
            wanted += map(next_token, row.picks())
        self.fed.append(fed)
        return self.sure * np.eye(VOCABULARY, dtype=np.float32)[wanted].reshape(len(wanted), VOCABULARY)

    def copy_slots(self, copies: Sequence[SlotCopy]) -> None:
        raise AssertionError("only slots are copied")

    def reset(self) -> None:
        self.cache.clear()

    def close(self) -> None:
        pass


def model(runner: ArithmeticRunner | None = None, vocabulary: int = VOCABULARY) -> DraftModel:
    return DraftModel(runner or ArithmeticRunner(), vocabulary=vocabulary)


def ask(drafts: DraftModel, tokens: Sequence[int], count: int, key: str = "a") -> Draft:
    return drafts.propose([DraftRequest(key, tuple(tokens), count)])[0]


def continued(tokens: Sequence[int], count: int) -> tuple[int, ...]:
    history = list(tokens)
    for _ in range(count):
        history.append(next_token(history))
    return tuple(history[len(tokens) :])


@pytest.mark.parametrize("right", [0, 1, 2, 3, 4])
def test_after_any_number_of_accepted_drafts_the_cache_holds_what_is_certain(right: int) -> None:  # B04
    drafts, text = model(), [1, 2, 3, 4, 5]
    for _ in range(30):
        found = ask(drafts, text, 4)
        assert found == Draft(continued(text, 4))
        text += found.tokens[:right]
        text.append(next_token(text) if right == 4 else 59 - found.tokens[right] % 50)
        assert drafts.held("a") >= len(text) - 2


def test_each_window_feeds_only_what_is_new() -> None:
    runner = ArithmeticRunner()
    drafts, text = model(runner), [1, 2, 3, 4, 5]
    text += ask(drafts, text, 3).tokens
    text.append(7)
    runner.fed.clear()
    ask(drafts, text, 3)
    assert runner.fed == [[(7, 2)], [(9, 1)], [(10, 1)]]  # full acceptance: the last draft was not fed before


def test_several_sequences_draft_together_each_as_much_as_it_asked() -> None:
    runner = ArithmeticRunner()
    drafts = model(runner)
    texts = {"a": [1, 2, 3], "b": [9, 8, 7, 6], "c": [5]}
    counts = {"a": 3, "b": 1, "c": 5}
    found = drafts.propose([DraftRequest(key, tuple(text), counts[key]) for key, text in texts.items()])
    assert [draft.tokens for draft in found] == [continued(text, counts[key]) for key, text in texts.items()]
    assert [len(rows) for rows in runner.fed] == [3, 2, 2, 1, 1]


def test_a_long_prompt_is_read_in_chunks_and_the_others_draft_meanwhile() -> None:
    drafts, long, short = model(), [i % 50 for i in range(3 * CHUNK)], [1, 2, 3]
    found = []
    for _ in range(3):
        both = drafts.propose([DraftRequest("long", tuple(long), 2), DraftRequest("short", tuple(short), 2)])
        assert both[1] == Draft(continued(short, 2))
        found.append(both[0])
    assert found == [Draft((), "behind"), Draft((), "behind"), Draft(continued(long, 2))]


def test_reading_ahead_takes_long_chunks_and_drafts_nothing() -> None:
    runner = ArithmeticRunner()
    drafts, long = model(runner), [i % 50 for i in range(LONG_CHUNK + 10)]
    assert ask(drafts, long, 0) == Draft((), "behind")
    assert ask(drafts, long, 0) == Draft((), "ready")
    runner.fed.clear()
    assert ask(drafts, [*long, 3], 1) == Draft(continued([*long, 3], 1))
    assert runner.fed == [[(len(long), 1)]]


def test_drafting_stops_at_the_context_of_the_draft_model() -> None:  # B15
    drafts = model(ArithmeticRunner(context=64))
    assert len(ask(drafts, [1] * 60, 8).tokens) == 4
    assert ask(drafts, [1] * 64, 8) == Draft((), "impossible")
    assert ask(drafts, [1] * 200, 8, key="b") == Draft((), "impossible")
    assert ask(drafts, [1, 2, 3], 2, key="c") == Draft(continued([1, 2, 3], 2))


def test_tokens_that_the_draft_model_does_not_know_end_its_drafts() -> None:  # B01
    drafts = model(vocabulary=50)
    assert ask(drafts, [1, 2, 55, 3], 4).state == "impossible"
    for start in range(20):
        assert max(ask(drafts, [start, 2, 3], 8, key=str(start)).tokens) < 50


def test_the_pool_gives_the_blocks_of_the_longest_unused_sequence_to_a_new_one() -> None:
    drafts = model(ArithmeticRunner(blocks=8))
    for key in ("a", "b"):
        ask(drafts, [1] * 30, 2, key=key)
    assert ask(drafts, [2] * 30, 2, key="c") == Draft(continued([2] * 30, 2))
    assert drafts.held("a") == 0
    assert drafts.held("b") > 0
    assert ask(drafts, [1] * 30, 2, key="a") == Draft(continued([1] * 30, 2))


def test_sequences_of_one_question_never_take_blocks_from_each_other() -> None:
    drafts = model(ArithmeticRunner(blocks=8))
    found = drafts.propose([DraftRequest(key, (1,) * 30, 2) for key in "abc"])
    assert [draft.state for draft in found] == ["ready", "ready", "impossible"]
    assert found[0].tokens == found[1].tokens == continued([1] * 30, 2)


def test_after_a_failure_of_the_device_everything_is_read_again() -> None:
    runner = ArithmeticRunner()
    drafts = model(runner)
    ask(drafts, [1, 2, 3], 2)
    runner.fail = True
    with pytest.raises(DeviceError):
        ask(drafts, [1, 2, 3, 4], 2)
    runner.fail = False
    runner.reset()
    assert ask(drafts, [1, 2, 3, 4], 2) == Draft(continued([1, 2, 3, 4], 2))


class Narrow(ArithmeticRunner):
    """Scores only some tokens: row i of its logits is that of `HEAD[i]`."""

    def infer(self, rows: Rows, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return super().infer(rows, value)[:, HEAD]


HEAD = np.array([*range(59, 29, -1), *range(30)], np.int32)


def test_a_narrow_head_drafts_the_tokens_of_its_rows() -> None:
    drafts = DraftModel(Narrow(), vocabulary=VOCABULARY, head=HEAD)
    assert ask(drafts, [1, 2, 63, 3], 6) == Draft(continued([1, 2, 63, 3], 6))  # 63 is read, though never drafted


def test_a_narrow_head_drafts_no_token_that_the_target_does_not_have() -> None:
    drafts = DraftModel(Narrow(), vocabulary=50, head=HEAD)
    for start in range(20):
        assert max(ask(drafts, [start, 2, 3], 8, key=str(start)).tokens) < 50


def read(drafts: DraftModel, text: Sequence[int], key: str) -> None:
    while ask(drafts, text, 0, key=key).state != "ready":
        pass


def test_a_new_sequence_that_begins_like_another_shares_its_blocks() -> None:
    runner = ArithmeticRunner()
    drafts, text = model(runner), [i % 50 for i in range(60)]
    read(drafts, text, "a")
    runner.fed.clear()
    assert ask(drafts, [*text[:40], 7, 7], 3, key="b") == Draft(continued([*text[:40], 7, 7], 3))
    assert runner.fed[0] == [(40, 2)]


def test_tokens_that_were_read_and_turn_out_wrong_change_nothing_of_what_others_share() -> None:
    runner = ArithmeticRunner()
    drafts, text = model(runner), [i % 50 for i in range(60)]
    for key in "ab":
        read(drafts, text, key)
    wrong = [*text[:21], 9, 9, 9]
    assert ask(drafts, wrong, 3, key="a") == Draft(continued(wrong, 3))
    runner.fed.clear()
    assert ask(drafts, [*text, 4], 3, key="b") == Draft(continued([*text, 4], 3))
    assert runner.fed[0] == [(60, 1)]


@pytest.mark.parametrize("seed", range(10))
def test_sequences_that_branch_off_each_other_in_a_small_pool_all_draft_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drafts = model(ArithmeticRunner(blocks=20))
    texts = {key: [1, 2, 3] for key in "abcd"}
    for _ in range(120):
        key, other = rng.choice(list("abcd"), 2).tolist()
        cut = int(rng.integers(1, len(texts[other]) + 1))
        texts[key] = texts[other][:cut] if rng.random() < 0.4 else texts[key][:60]
        texts[key] = [*texts[key], *rng.integers(0, 3, int(rng.integers(1, 12))).tolist()]
        found = ask(drafts, texts[key], int(rng.integers(0, 5)), key=key)
        assert found.tokens == continued(texts[key], len(found.tokens))


HALF = float(np.log(VOCABULARY - 1))  # the logit at which the next token has a chance of one half


@pytest.mark.parametrize(("least", "length"), [(0.0, 8), (0.2, 2), (0.3, 1), (0.6, 0)])
def test_a_window_ends_at_the_first_token_whose_chance_is_too_small(least: float, length: int) -> None:
    runner = ArithmeticRunner()
    runner.sure = HALF
    draft = model(runner).propose([DraftRequest("a", (1, 2, 3), 8, least=least)])[0]
    assert draft == Draft(continued([1, 2, 3], length))
    assert len(runner.fed) == (8 if length == 8 else length + 1)


def test_a_guess_of_what_is_computed_anyway_counts_in_no_chance() -> None:
    runner = ArithmeticRunner()
    runner.sure = HALF
    draft = model(runner).propose([DraftRequest("a", (1, 2, 3), 8, least=0.4, ahead=1)])[0]
    assert len(draft.tokens) == 2


def test_drafts_that_take_a_dummy_s_place_are_kept_however_unlikely() -> None:
    runner = ArithmeticRunner()
    runner.sure = HALF
    draft = model(runner).propose([DraftRequest("a", (1, 2, 3), 8, least=0.9, kept=1)])[0]
    assert len(draft.tokens) == 1


def test_sequences_end_their_windows_each_for_itself_and_the_cache_holds_what_was_kept() -> None:
    runner = ArithmeticRunner()
    runner.sure = HALF
    drafts = model(runner)
    short, long = drafts.propose([DraftRequest("a", (1, 2, 3), 6, least=0.4), DraftRequest("b", (4, 5), 6)])
    assert (len(short.tokens), len(long.tokens)) == (1, 6)
    assert drafts.propose([DraftRequest("a", (1, 2, 3, *short.tokens), 4)])[0].tokens == continued(
        [1, 2, 3, *short.tokens], 4
    )
