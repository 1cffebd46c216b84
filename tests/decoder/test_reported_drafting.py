"""What others reported of speculative decoding and of full caches, played with scripted target and draft."""

from collections.abc import Sequence

import pytest

from engine.contract.drafts import Draft, DraftRequest
from engine.decoder.core import DecoderCore
from engine.decoder.speculation import DraftState
from stages.draft_model import DraftModel
from tests.decoder import fakes
from tests.decoder.fakes import EOS
from tests.decoder.local_pipeline import ArithmeticShard
from tests.decoder.scripted import (
    BLOCKS,
    Loop,
    NextToken,
    ScriptedDraft,
    ScriptedTarget,
    core_with,
    drive,
    erring,
    plain,
    sequence,
    target_token,
)
from tests.manifests import VOCABULARY


def ending(after: int, length: int) -> NextToken:
    """The usual answer to a prompt of that length, and its end behind so many tokens."""
    return lambda history: EOS if len(history) == length + after else target_token(history)


@pytest.mark.parametrize("after", [1, 3, 4, 9])
@pytest.mark.parametrize("source", ["model", "none"])
def test_the_turn_behind_an_early_end_reuses_all_of_the_answer_and_answers_as_cold(after: int, source: str) -> None:
    """A13."""

    def ask(core: DecoderCore, name: str, tokens: Sequence[int], token: NextToken) -> fakes.Sequence:
        one = sequence(name, prompt=len(tokens), max_tokens=24, fixed=8 if source == "model" else None)
        one.tokens = list(tokens)
        one.drafts = DraftState((source,), 8) if source == "model" else DraftState(())
        core.submit(one)
        target.next_token = token
        drive(core, target, ScriptedDraft(token))
        return one

    target = ScriptedTarget(target_token)
    core = core_with(steps_in_flight=1)
    prompt = list(range(1, 15))
    first = ask(core, "first", prompt, ending(after, len(prompt)))
    assert first.tokens == [*prompt, *first.answer.ids]
    assert first.answer.ids[-1] == EOS
    turn = [*first.tokens, 7, 8, 9]
    second = ask(core, "second", turn, target_token)
    assert second.cached == (len(first.tokens) - 1) // 8 * 8
    assert second.answer.ids == plain(target_token, turn, 24)


class Watched:
    """A real draft model that notes after each round how many tokens it holds beyond those that are certain."""

    def __init__(self, next_token: NextToken) -> None:
        shard = ArithmeticShard(last=True, script=next_token)
        self.model, self.surplus = DraftModel(shard, vocabulary=VOCABULARY), list[int]()

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        found = self.model.propose(requests)
        for request, draft in zip(requests, found, strict=True):
            drafted = max(len(draft.tokens) - 1, 0)  # the last one was said and not read
            self.surplus.append(self.model.held(request.key) - len(request.tokens) - drafted)
        return found


@pytest.mark.parametrize("every", [0, 5])
def test_a_draft_model_s_cache_follows_the_answer_and_its_drafts_stay_as_good(every: int) -> None:
    """B04: the same model as draft and target, then one that errs at every fifth place."""
    draft = Watched(erring(every) if every else target_token)
    one = sequence(prompt=7, max_tokens=180, fixed=4)
    prompt = list(one.tokens)
    core = core_with(one, steps_in_flight=1)
    loop, accepted = Loop(core, ScriptedTarget(target_token), draft), dict[int, tuple[int, int]]()  # type: ignore[arg-type]
    for _ in loop.turns():
        accepted[len(one.answer.ids)] = (one.drafts.accepted, one.drafts.checked)
    assert one.answer.ids == plain(target_token, prompt, 180)
    assert set(draft.surplus) == {0}

    def rate(start: int, end: int) -> float:
        inside = [figures for length, figures in accepted.items() if start <= length <= end]
        return (inside[-1][0] - inside[0][0]) / (inside[-1][1] - inside[0][1])

    assert rate(130, 180) >= rate(1, 51) - 0.05
    if not every:
        assert one.drafts.accepted == one.drafts.checked > 100


@pytest.mark.parametrize("shared", [0, 24])
def test_a_draft_that_always_errs_at_its_second_token_leaves_nothing_behind(shared: int) -> None:
    """B07: a hundred prompts, with a common beginning in the prefix cache and without; any draw is a fixed token."""

    def second_wrong(requests: Sequence[DraftRequest]) -> list[Draft]:
        found: list[Draft] = []
        for request in requests:
            right = plain(target_token, request.tokens, request.count)
            found.append(Draft(tuple((token + (at == 1)) % 26 for at, token in enumerate(right))))
        return found

    class Draftsman(ScriptedDraft):
        def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            return second_wrong(requests)

    ones = [sequence(str(i), prompt=shared + 6, max_tokens=12, fixed=4) for i in range(100)]
    for i, one in enumerate(ones):
        one.tokens = [*range(shared), i, 1, 2, 3, 4, 5]
    prompts = [list(one.tokens) for one in ones]
    core, target = core_with(*ones), ScriptedTarget(target_token)
    drive(core, target, Draftsman(target_token))
    assert [one.answer.ids for one in ones] == [plain(target_token, prompt, 12) for prompt in prompts]
    assert [one.tokens for one in ones] == [[*p, *one.answer.ids] for p, one in zip(prompts, ones, strict=True)]
    assert all(one.drafts.accepted < one.drafts.checked for one in ones)
    assert any(one.cached for one in ones) == (shared > 0)


@pytest.mark.parametrize("moment", [*range(14), None])
def test_a_request_cancelled_at_any_moment_gives_back_all_it_had(moment: int | None) -> None:
    """D21: waiting, in its prompt, with windows under way; a cancel that is lost costs its answer's tokens, no more."""
    gone, stays = sequence("gone", prompt=60, fixed=3), sequence("stays", prompt=5, fixed=3)
    waits = sequence("waits", prompt=5, fixed=3)
    core = core_with(stays, gone, waits, steps_in_flight=3, prefill_tokens=16)
    prompt = list(stays.tokens)
    loop = Loop(core, ScriptedTarget(target_token), ScriptedDraft(target_token))
    for turn, _ in enumerate(loop.turns()):
        if turn == moment:
            core.remove(gone)
            core.remove(waits)
    assert stays.answer.ids == plain(target_token, prompt, 40)
    assert core.blocks.available == core.blocks.total
    assert (core.running, list(core.waiting), core.flights) == ([], [], {})
    assert core.tables.slots.free == 16


def test_four_requests_in_a_cache_for_one_and_a_half_are_all_answered_and_a_larger_one_never_starts() -> None:
    """D35."""
    core = DecoderCore()
    core.open_epoch(fakes.capacity(blocks=256 // 8, context_length=512))
    assert not core.fits(300)
    ones = [sequence(str(i), prompt=100, max_tokens=60) for i in range(4)]
    for i, one in enumerate(ones):
        one.tokens = [(i + at) % 26 for at in range(100)]
        one.drafts = DraftState(())
        core.submit(one)
    prompts = [list(one.tokens) for one in ones]
    target = ScriptedTarget(target_token)
    drive(core, target, None)
    assert [one.answer.ids for one in ones] == [plain(target_token, prompt, 60) for prompt in prompts]
    assert core.preemptions > 0
    short = sequence("short", prompt=4, max_tokens=3)
    short.drafts, before = DraftState(()), list(short.tokens)
    core.submit(short)
    drive(core, target, None)
    assert short.answer.ids == plain(target_token, before, 3)
    assert core.blocks.available == core.blocks.total


def test_many_requests_leave_nothing_behind() -> None:
    """D33: prompts that differ, prompts with one beginning, cancelled ones; tables are as they were before."""
    core, target = core_with(steps_in_flight=2), ScriptedTarget(target_token)

    def ask(first: int, count: int) -> tuple[int, ...]:
        for batch in range(first, first + count, 20):
            for i in range(batch, batch + 20):
                one = sequence(str(i), prompt=20, max_tokens=1, fixed=2)
                one.tokens = [*([i] * 10 if i % 2 else range(10)), *range(i, i + 10)]
                core.submit(one)
                if i % 10 == 0:
                    core.remove(one)
            drive(core, target, ScriptedDraft(target_token))
        known = core.prefix_cache().cached_blocks
        return len(core.running), len(core.waiting), len(core.flights), core.tables.slots.free, known

    base = ask(0, 400)
    assert base[:4] == (0, 0, 0, 16)
    assert BLOCKS - 16 <= base[4] <= BLOCKS
    assert ask(400, 400) == base
