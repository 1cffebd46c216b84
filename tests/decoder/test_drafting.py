"""Speculation in the decoder core, with scripted target and draft: on == off, whatever is drafted, fails or is late."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine.contract.drafts import Draft
from engine.decoder.answer import Answer, EndRules
from engine.decoder.core import DecoderCore
from engine.decoder.sequence import Sequence as Running
from engine.decoder.speculation import DraftState
from tests.decoder.fakes import EOS, LetterStream, capacity
from tests.decoder.fakes import sequence as plain_sequence
from tests.decoder.scripted import ScriptedDraft, ScriptedTarget, drive, plain


def target_token(history: Sequence[int]) -> int:
    return (sum((i + 1) * token for i, token in enumerate(history)) + len(history)) % 26


def looping(history: Sequence[int]) -> int:
    return history[-6] if len(history) > 40 else target_token(history)


def erring(every: int) -> Callable[[Sequence[int]], int]:
    def token(history: Sequence[int]) -> int:
        right = target_token(history)
        return (right + 1) % 26 if len(history) % every == 0 else right

    return token


def sequence(name: str = "r", prompt: int = 7, max_tokens: int = 40, fixed: int | None = None, **state: Any) -> Running:
    made = plain_sequence(name, prompt, max_tokens, first=len(name))
    made.answer = Answer(EndRules(eos_ids=frozenset({EOS}), max_tokens=max_tokens, **state), LetterStream())
    made.drafts = DraftState(("model",), fixed)
    return made


def core_with(*sequences: Running, **limits: int) -> DecoderCore:
    core = DecoderCore()
    core.open_epoch(capacity(blocks=256, **limits))
    for one in sequences:
        core.submit(one)
    return core


DRAFTS = {
    "right": target_token,
    "wrong every fifth": erring(5),
    "wrong every second": erring(2),
    "always wrong": lambda history: (target_token(history) + 1) % 26,
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("steps_in_flight", [1, 2, 3, 5])
@pytest.mark.parametrize("requests", [1, 2, 3, 8])
@pytest.mark.parametrize("fixed", [1, 3, 5, 10, None])
@pytest.mark.parametrize("name", DRAFTS)
def test_on_equals_off(name: str, fixed: int | None, requests: int, steps_in_flight: int, late: bool) -> None:
    sequences = [sequence(str(i), prompt=3 + 5 * i, fixed=fixed) for i in range(requests)]
    prompts = [list(one.tokens) for one in sequences]
    core = core_with(*sequences, steps_in_flight=steps_in_flight)
    drive(core, ScriptedTarget(target_token), ScriptedDraft(DRAFTS[name]), late=late)
    assert [one.answer.ids for one in sequences] == [plain(target_token, prompt, 40) for prompt in prompts]
    assert core.tables.pool.free == core.tables.pool.total


@pytest.mark.parametrize("steps_in_flight", [1, 2, 4])
def test_lookups_change_nothing_either(steps_in_flight: int) -> None:
    one = sequence(max_tokens=120)
    one.drafts = DraftState(("lookup",))
    prompt = list(one.tokens)
    core = core_with(one, steps_in_flight=steps_in_flight)
    target = ScriptedTarget(looping)
    drive(core, target, None)
    assert one.answer.ids == plain(looping, prompt, 120)
    assert one.drafts.accepted > 50
    assert len(target.rows) < 100


@pytest.mark.parametrize("k", [1, 3, 5])
def test_full_acceptance_brings_every_draft_and_one_more(k: int) -> None:  # B04, B06
    one = sequence(max_tokens=200, fixed=k)
    core, target = core_with(one, steps_in_flight=1, context_length=256), ScriptedTarget(target_token)
    drive(core, target, ScriptedDraft(target_token))
    rows = [row for row in target.rows if row[2]]
    assert len(rows) == 1 + -(-199 // (k + 1))
    assert one.drafts.accepted == one.drafts.checked


def test_zero_accepted_drafts_beside_a_row_that_accepts_all() -> None:  # B17
    def token(history: Sequence[int]) -> int:
        return (target_token(history) + (history[0] == 0)) % 26

    good, bad = sequence("a", fixed=3, max_tokens=50), sequence("b", fixed=3, max_tokens=50)
    good.tokens[0], bad.tokens[0] = 1, 0
    prompts = [list(good.tokens), list(bad.tokens)]
    core = core_with(good, bad, steps_in_flight=1)
    drive(core, ScriptedTarget(target_token), ScriptedDraft(token))
    assert [good.answer.ids, bad.answer.ids] == [plain(target_token, prompt, 50) for prompt in prompts]
    assert bad.drafts.accepted == 0
    assert good.drafts.accepted == good.drafts.checked


@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("source", ["model", "lookup"])
def test_an_end_of_sequence_inside_an_accepted_window_ends_the_answer_there(at: int, source: str) -> None:  # A12, A13
    prompt = [1, 2, 3, 4, 5, 6, 7, EOS, 9, 9, 1, 2, 3] if source == "lookup" else [1, 2, 3]

    def token(history: Sequence[int]) -> int:
        if source == "lookup":
            return [4, 5, 6, 7, EOS, 9, 9, 1, 2, 3][min(len(history) - 13, 9)]
        return EOS if len(history) == 3 + at else len(history)

    one = sequence(fixed=8, max_tokens=20)
    one.tokens, one.prompt_length, one.limit = list(prompt), len(prompt), len(prompt) + 20
    one.drafts = DraftState((source,), 8)
    core = core_with(one, steps_in_flight=1)
    progress = drive(core, ScriptedTarget(token), ScriptedDraft(token))
    ids = one.answer.ids
    assert ids[-1] == EOS
    assert ids.count(EOS) == 1
    assert one.answer.finish == "stop"
    assert [i for item in progress for i in item.delta.ids] == ids
    assert one.tokens == prompt + ids
    assert one.drafts.accepted <= len(ids) - 1
    assert core.speculation.accepted == one.drafts.accepted
    assert core.tables.pool.free == core.tables.pool.total


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 6, 11])
def test_an_answer_never_gets_longer_than_asked(max_tokens: int) -> None:  # A15, A17
    one = sequence(fixed=4, max_tokens=max_tokens)
    prompt = list(one.tokens)
    core, target = core_with(one), ScriptedTarget(target_token)
    drive(core, target, ScriptedDraft(target_token))
    assert one.answer.ids == plain(target_token, prompt, max_tokens)
    assert one.answer.finish == "length"
    assert max(start + length for start, length, _ in target.rows) <= len(prompt) + max_tokens


def test_partial_acceptances_deliver_exactly_what_was_asked() -> None:  # A17
    one = sequence(fixed=4, max_tokens=8)
    prompt = list(one.tokens)
    progress = drive(core_with(one), ScriptedTarget(target_token), ScriptedDraft(erring(3)))
    delivered = [token for item in progress for token in item.delta.ids]
    assert delivered == one.answer.ids == plain(target_token, prompt, 8)
    assert one.drafts.accepted <= one.drafts.checked


def test_a_stop_string_inside_an_accepted_window_ends_text_ids_and_figures_together() -> None:  # A10
    script = [7, 7, 7, 14, 14, 14]  # h h h o o o

    def token(history: Sequence[int]) -> int:
        return script[(len(history) - 3) % 6]

    one = sequence(fixed=6, max_tokens=12, stop=("hhh",))
    one.tokens, one.prompt_length, one.limit = [1, 2, 3], 3, 15
    off = sequence("off", max_tokens=12, stop=("hhh",))
    off.tokens, off.prompt_length, off.limit, off.drafts = [1, 2, 3], 3, 15, DraftState(())
    for each in (one, off):
        core = core_with(each)
        drive(core, ScriptedTarget(token), ScriptedDraft(token))
        assert (each.answer.text, each.answer.ids, each.answer.finish) == ("", [7, 7, 7], "stop")
        assert each.tokens == [1, 2, 3, 7, 7, 7]
    assert one.drafts.accepted == one.drafts.checked == 2


@pytest.mark.parametrize("ignore", [True, False])
def test_ignored_end_tokens_are_tokens_like_others(ignore: bool) -> None:  # A14
    script = [4, 5, 7, 6, 8, 2]
    rules = frozenset() if ignore else frozenset({2, 7})
    for state in (DraftState(("model",), 4), DraftState(())):
        one = sequence(max_tokens=20)
        one.drafts = state
        one.answer = Answer(EndRules(eos_ids=rules, max_tokens=20), LetterStream())
        length = len(one.tokens)

        def token(history: Sequence[int], length: int = length) -> int:
            return script[(len(history) - length) % 6]

        drive(core_with(one), ScriptedTarget(token), ScriptedDraft(token))
        assert len(one.answer.ids) == (20 if ignore else 3)
        assert one.answer.finish == ("length" if ignore else "stop")


@pytest.mark.parametrize(("prompt", "max_tokens"), [(50, 14), (63, 1), (40, 24)])
def test_drafts_never_leave_the_context(prompt: int, max_tokens: int) -> None:  # B23
    one = sequence(prompt=prompt, max_tokens=max_tokens, fixed=4)
    before = list(one.tokens)
    core, target = core_with(one, context_length=64), ScriptedTarget(target_token)
    drive(core, target, ScriptedDraft(target_token))
    assert one.answer.ids == plain(target_token, before, max_tokens)
    assert one.answer.finish == "length"
    assert max(start + length for start, length, _ in target.rows) <= 64


def test_a_request_that_is_removed_with_windows_in_flight_disturbs_nobody() -> None:
    gone, stays = sequence("gone", fixed=3), sequence("stays", fixed=3)
    prompt = list(stays.tokens)
    core, target, draft = core_with(gone, stays), ScriptedTarget(target_token), ScriptedDraft(target_token)
    flying = []
    for now in range(3):
        asked = core.draft("free")
        if asked:
            core.drafted(asked, draft.propose(asked), 0.0)
        while (step := core.next_step(float(now))) is not None:
            flying.append(step)
        done = flying.pop(0)
        core.result(done.number, target.run(done), float(now))
    core.remove(gone)
    for step in flying:
        core.result(step.number, target.run(step), 4.0)
    drive(core, target, draft)
    assert stays.answer.ids == plain(target_token, prompt, 40)
    assert core.tables.pool.free == core.tables.pool.total


def test_an_epoch_lost_with_windows_in_flight_is_replayed_without_a_trace() -> None:
    one = sequence(fixed=3)
    prompt = list(one.tokens)
    core, target, draft = core_with(one, steps_in_flight=3), ScriptedTarget(target_token), ScriptedDraft(erring(5))
    for now in range(6):
        asked = core.draft("free")
        core.drafted(asked, draft.propose(asked), 0.0) if asked else None
        step = core.next_step(float(now))
        if step is not None:
            core.result(step.number, target.run(step), float(now))
    asked = core.draft("free")  # and never answered before the loss
    core.lose_epoch()
    core.open_epoch(capacity(blocks=64, steps_in_flight=3))
    core.drafted(asked, draft.propose(asked), 0.0) if asked else None
    drive(core, ScriptedTarget(target_token), draft)
    assert one.answer.ids == plain(target_token, prompt, 40)


def test_one_request_on_three_stages_fills_the_pipe_with_windows_sent_ahead() -> None:
    one = sequence(fixed=2, max_tokens=60)
    prompt = list(one.tokens)
    core, target, draft = core_with(one, steps_in_flight=3), ScriptedTarget(target_token), ScriptedDraft(target_token)
    depths, flying = [], []
    for now in range(200):
        while True:
            asked = core.draft("free")
            core.drafted(asked, draft.propose(asked), 0.0) if asked else None
            step = core.next_step(float(now))
            if step is None:
                break
            flying.append(step)
        if not flying:
            break
        depths.append(len(flying))
        done = flying.pop(0)
        core.result(done.number, target.run(done), float(now))
    assert max(depths) == 3
    assert one.answer.ids == plain(target_token, prompt, 60)


def test_nobody_runs_ahead_when_requests_fill_the_pipe() -> None:
    sequences = [sequence(str(i), fixed=2) for i in range(3)]
    core, target, draft = core_with(*sequences, steps_in_flight=3), ScriptedTarget(target_token), None
    seen = []
    draft = ScriptedDraft(target_token)
    flying = []
    while any(not one.answer.finish for one in sequences):
        asked = core.draft("free")
        core.drafted(asked, draft.propose(asked), 0.0) if asked else None
        while (step := core.next_step(0.0)) is not None:
            flying.append(step)
        if all(one.slot >= 0 for one in sequences):
            seen.append(max(one.flying for one in sequences))
        done = flying.pop(0)
        core.result(done.number, target.run(done), 0.0)
    assert max(seen) == 1


def test_a_step_waits_for_the_drafts_of_its_group_instead_of_splitting_it() -> None:
    sequences = [sequence(str(i), fixed=2) for i in range(4)]
    core, target, draft = (
        core_with(*sequences, steps_in_flight=1),
        ScriptedTarget(target_token),
        ScriptedDraft(erring(4)),
    )
    drive(core, target, draft)
    rows = [row for row in target.rows if row[2]]
    assert len(rows) <= 4 * 41
    first, second = (
        core_with(sequence("a", fixed=2), sequence("b", fixed=2), steps_in_flight=1),
        ScriptedTarget(target_token),
    )
    prefill = first.next_step(0.0)
    assert prefill is not None
    first.result(prefill.number, second.run(prefill), 0.0)
    asked = first.draft("free")
    assert len(asked) == 2
    first.drafted(asked[:1], draft.propose(asked[:1]), 0.0)
    assert first.next_step(1.0) is None
    first.drafted(asked[1:], draft.propose(asked[1:]), 0.0)
    step = first.next_step(1.0)
    assert step is not None
    assert step.rows.count == 2


def test_a_draft_model_that_cannot_follow_is_not_asked_again_for_that_request() -> None:  # B15
    one, other = sequence("one", fixed=3), sequence("other", fixed=3)
    prompts = [list(one.tokens), list(other.tokens)]
    core, target, draft = core_with(one, other), ScriptedTarget(target_token), ScriptedDraft(target_token)
    asked: list[str] = []

    class Limited(ScriptedDraft):
        def propose(self, requests):
            asked.extend(request.key for request in requests)
            return [Draft((), "impossible") if r.key == "one" else draft.propose([r])[0] for r in requests]

    drive(core, target, Limited(target_token))
    assert [one.answer.ids, other.answer.ids] == [plain(target_token, prompt, 40) for prompt in prompts]
    assert asked.count("one") == 1
    assert other.drafts.accepted > 20


def test_a_long_prompt_is_answered_without_drafts_until_the_draft_model_has_read_it() -> None:
    one = sequence(fixed=3)
    prompt = list(one.tokens)
    calls = 0

    class Slow(ScriptedDraft):
        def propose(self, requests):
            nonlocal calls
            calls += 1
            return super().propose(requests) if calls > 6 else [Draft((), "behind") for _ in requests]

    core, target = core_with(one), ScriptedTarget(target_token)
    drive(core, target, Slow(target_token))
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


def test_rows_of_all_requests_stay_within_what_a_step_may_hold() -> None:
    sequences = [sequence(str(i), fixed=10, max_tokens=30) for i in range(8)]
    prompts = [list(one.tokens) for one in sequences]
    core, target = core_with(*sequences, steps_in_flight=1, max_tokens=64), ScriptedTarget(target_token)
    flying, most = [], 0
    draft = ScriptedDraft(target_token)
    while any(not one.answer.finish for one in sequences):
        asked = core.draft("free")
        core.drafted(asked, draft.propose(asked), 0.0) if asked else None
        while (step := core.next_step(0.0)) is not None:
            most = max(most, len(step.tokens))
            flying.append(step)
        done = flying.pop(0)
        core.result(done.number, target.run(done), 0.0)
    assert most <= 64
    assert [one.answer.ids for one in sequences] == [plain(target_token, prompt, 30) for prompt in prompts]
