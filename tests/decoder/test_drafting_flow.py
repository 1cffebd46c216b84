"""Drafts and steps under way together, with scripted target and draft: who waits, who runs ahead, what is lost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import pytest

from engine.contract.drafts import Draft, DraftRequest
from engine.decoder.core import DecoderCore, PlannedStep
from tests.decoder.fakes import capacity
from tests.decoder.scripted import (
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


def test_a_request_that_is_removed_with_windows_in_flight_disturbs_nobody() -> None:
    gone, stays = sequence("gone", fixed=3), sequence("stays", fixed=3)
    prompt = list(stays.tokens)
    core = core_with(gone, stays)
    loop = Loop(core, ScriptedTarget(target_token), ScriptedDraft(target_token))
    for turn, flying in enumerate(loop.turns()):
        if turn == 3:
            assert flying
            assert gone.tail
            core.remove(gone)
    assert stays.answer.ids == plain(target_token, prompt, 40)
    assert core.blocks.available == core.blocks.total


@pytest.mark.parametrize("turns", range(2, 9))
def test_an_epoch_lost_with_windows_in_flight_is_replayed_without_a_trace(turns: int) -> None:
    one, draft = sequence(fixed=3), ScriptedDraft(erring(5))
    prompt = list(one.tokens)
    core = core_with(one, steps_in_flight=3)
    assert len(list(islice(Loop(core, ScriptedTarget(target_token), draft).turns(), turns))) == turns
    core.lose_epoch()
    core.open_epoch(capacity(blocks=64, steps_in_flight=3))
    drive(core, ScriptedTarget(target_token), draft)
    assert one.answer.ids == plain(target_token, prompt, 40)
    assert core.blocks.available == 64


def test_drafts_asked_for_before_an_epoch_was_lost_do_no_harm_after_it() -> None:
    one, draft = sequence(fixed=3), ScriptedDraft(target_token)
    prompt = list(one.tokens)
    core = core_with(one, steps_in_flight=1)
    loop = Loop(core, ScriptedTarget(target_token), draft)
    assert len(list(islice(loop.turns(), 4))) == 4
    loop.take(9.0)
    asked = core.draft("free")
    assert [request.count for request in asked] == [3]
    core.lose_epoch()
    core.open_epoch(capacity(blocks=64))
    core.drafted(asked, draft.propose(asked), 0.0)
    drive(core, ScriptedTarget(target_token), draft)
    assert one.answer.ids == plain(target_token, prompt, 40)


def test_one_request_on_three_stages_fills_the_pipe_with_windows_sent_ahead() -> None:
    one = sequence(fixed=2, max_tokens=60)
    prompt = list(one.tokens)
    loop = Loop(core_with(one, steps_in_flight=3), ScriptedTarget(target_token), ScriptedDraft(target_token))
    assert max(len(flying) for flying in loop.turns()) == 3
    assert one.answer.ids == plain(target_token, prompt, 60)


def test_nobody_runs_ahead_when_requests_fill_the_pipe() -> None:
    sequences = [sequence(str(i), fixed=2) for i in range(3)]
    loop = Loop(core_with(*sequences, steps_in_flight=3), ScriptedTarget(target_token), ScriptedDraft(target_token))
    seen = [max(one.flying for one in sequences) for _ in loop.turns() if all(one.slot >= 0 for one in sequences)]
    assert max(seen) == 1


def test_four_requests_never_need_more_rows_than_they_have_tokens() -> None:
    target = ScriptedTarget(target_token)
    sequences = [sequence(str(i), fixed=2) for i in range(4)]
    drive(core_with(*sequences, steps_in_flight=1), target, ScriptedDraft(erring(4)))
    assert len([row for row in target.rows if row[2]]) <= 4 * 41


def test_a_step_waits_for_the_drafts_of_its_group_instead_of_splitting_it() -> None:
    core = core_with(sequence("a", fixed=2), sequence("b", fixed=2), steps_in_flight=1)
    target, draft = ScriptedTarget(target_token), ScriptedDraft(target_token)
    prefill = core.next_step(0.0)
    assert prefill is not None
    core.result(prefill.number, target.run(prefill), 0.0)
    asked = core.draft("free")
    assert len(asked) == 2
    core.drafted(asked[:1], draft.propose(asked[:1]), 0.0)
    assert core.next_step(1.0) is None
    core.drafted(asked[1:], draft.propose(asked[1:]), 0.0)
    step = core.next_step(1.0)
    assert step is not None
    assert step.rows.count == 2


def test_a_draft_model_that_cannot_follow_is_not_asked_again_for_that_request() -> None:  # B15
    one, other = sequence("one", fixed=3), sequence("other", fixed=3)
    prompts = [list(one.tokens), list(other.tokens)]
    asked: list[str] = []

    class Limited(ScriptedDraft):
        def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            asked.extend(request.key for request in requests)
            return [
                Draft((), "impossible") if r.key == "one" else super(Limited, self).propose([r])[0] for r in requests
            ]

    drive(core_with(one, other), ScriptedTarget(target_token), Limited(target_token))
    assert [one.answer.ids, other.answer.ids] == [plain(target_token, prompt, 40) for prompt in prompts]
    assert asked.count("one") == 1
    assert other.drafts.accepted > 20


def test_a_long_prompt_is_answered_without_drafts_until_the_draft_model_has_read_it() -> None:
    one = sequence(fixed=3)
    prompt = list(one.tokens)
    calls = 0

    class Slow(ScriptedDraft):
        def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            nonlocal calls
            calls += 1
            return super().propose(requests) if calls > 6 else [Draft((), "behind") for _ in requests]

    drive(core_with(one), ScriptedTarget(target_token), Slow(target_token))
    assert one.answer.ids == plain(target_token, prompt, 40)
    assert one.drafts.accepted > 10


def test_a_busy_draft_model_is_waited_for() -> None:
    one = sequence(fixed=3)
    core, target = core_with(one, steps_in_flight=1), ScriptedTarget(target_token)
    step = core.next_step(0.0)
    assert step is not None
    core.result(step.number, target.run(step), 0.0)
    assert core.draft("busy") == []
    assert core.next_step(1.0) is None
    assert [request.count for request in core.draft("free")] == [3]


@dataclass
class CoreOfItsOwn:
    """One request, one step in flight, and a draft model that drafts while that step is computed."""

    right: NextToken
    fixed: int | None = 3

    def __post_init__(self) -> None:
        self.one = sequence(fixed=self.fixed)
        self.prompt = list(self.one.tokens)
        self.core = DecoderCore()
        self.core.open_epoch(replace(capacity(blocks=64, steps_in_flight=1, min_row_tokens=1), draft_core=True))
        self.core.submit(self.one)
        self.target, self.draft = ScriptedTarget(target_token), ScriptedDraft(self.right)

    def step(self, now: float) -> PlannedStep:
        step = self.core.next_step(now)
        assert step is not None
        return step

    def answer(self, step: PlannedStep, now: float) -> None:
        self.core.result(step.number, self.target.run(step), now)

    def begin(self) -> PlannedStep:
        """The prompt was read, and the first window, of three drafts, is under way."""
        self.answer(self.step(0.0), 1.0)
        asked = self.core.draft("free")
        self.core.drafted(asked, [Draft(draft.tokens[:3]) for draft in self.draft.propose(asked)], 0.001)
        return self.step(1.0)


def test_while_a_window_is_verified_the_next_one_is_drafted_and_sent_at_once_when_all_of_it_holds() -> None:
    setting = CoreOfItsOwn(target_token)
    window = setting.begin()
    asked = setting.core.draft("free")
    assert [(request.count, request.ahead) for request in asked] == [(4, 1)]  # the target's own token, and three more
    setting.core.drafted(asked, setting.draft.propose(asked), 0.001)
    assert setting.core.next_step(1.5) is None
    setting.answer(window, 2.0)
    assert setting.core.draft("free") == []
    assert setting.step(2.0).tokens.size == 4
    assert setting.one.answer.ids == plain(target_token, setting.prompt, 5)


def test_a_window_drafted_for_an_outcome_that_did_not_come_is_forgotten() -> None:
    setting = CoreOfItsOwn(erring(9))  # the first window's second draft is wrong
    window = setting.begin()
    asked = setting.core.draft("free")
    setting.answer(window, 2.0)
    setting.core.drafted(asked, setting.draft.propose(asked), 0.001)
    assert setting.core.next_step(2.0) is None
    again = setting.core.draft("free")
    assert [(request.count, request.ahead) for request in again] == [(3, 0)]
    setting.core.drafted(again, setting.draft.propose(again), 0.001)
    drive_on = Loop(setting.core, setting.target, setting.draft)
    assert len(list(drive_on.turns())) > 5
    assert setting.one.answer.ids == plain(target_token, setting.prompt, 40)


def test_a_model_that_saw_nothing_likely_behind_a_window_is_not_asked_again_behind_it() -> None:
    setting = CoreOfItsOwn(target_token, fixed=None)
    window = setting.begin()
    asked = setting.core.draft("free")
    guess = [Draft(draft.tokens[:1]) for draft in setting.draft.propose(asked)]
    setting.core.drafted(asked, guess, 0.001)
    setting.answer(window, 2.0)
    assert setting.core.draft("free") == []
    assert setting.step(2.0).tokens.size == 1


def test_without_a_core_of_its_own_a_draft_model_leaves_the_stages_alone() -> None:
    setting = CoreOfItsOwn(target_token)
    setting.core.open_epoch(capacity(blocks=64, steps_in_flight=1, min_row_tokens=1))
    setting.begin()
    assert setting.core.draft("free") == []


def test_rows_of_all_requests_stay_within_what_a_step_may_hold() -> None:
    sequences = [sequence(str(i), fixed=10, max_tokens=30) for i in range(8)]
    prompts = [list(one.tokens) for one in sequences]
    core = core_with(*sequences, steps_in_flight=1, max_tokens=64)
    loop = Loop(core, ScriptedTarget(target_token), ScriptedDraft(target_token))
    assert max(len(step.tokens) for flying in loop.turns() for step in flying) <= 64
    assert [one.answer.ids for one in sequences] == [plain(target_token, prompt, 30) for prompt in prompts]
