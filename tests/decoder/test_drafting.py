"""Speculation in the decoder core, with scripted target and draft: on == off, and where answers end."""

import random
from collections.abc import Sequence
from itertools import combinations, product

import pytest

from engine.decoder.answer import Answer, EndRules
from engine.decoder.speculation import DraftState
from tests.decoder.fakes import EOS, LetterStream
from tests.decoder.scripted import (
    ScriptedDraft,
    ScriptedTarget,
    core_with,
    drive,
    erring,
    plain,
    sequence,
    target_token,
)


def looping(history: Sequence[int]) -> int:
    return history[-6] if len(history) > 40 else target_token(history)


DRAFTS = {
    "right": target_token,
    "wrong every fifth": erring(5),
    "wrong every second": erring(2),
    "always wrong": lambda history: (target_token(history) + 1) % 26,
}


CASES = list(product(DRAFTS, [1, 3, 5, 10, None], [1, 2, 3, 8], [1, 2, 3, 5], [False, True]))
SOME = random.Random(0).sample(CASES, 128)  # of 640: every value meets every other


def test_every_two_values_meet_in_some_case() -> None:
    def pairs(cases: Sequence[tuple[object, ...]]) -> set[object]:
        return {(i, case[i], j, case[j]) for case in cases for i, j in combinations(range(5), 2)}

    assert pairs(SOME) == pairs(CASES)


@pytest.mark.parametrize(("name", "fixed", "requests", "steps_in_flight", "late"), SOME)
def test_on_equals_off(name: str, fixed: int | None, requests: int, steps_in_flight: int, late: bool) -> None:
    sequences = [sequence(str(i), prompt=3 + 5 * i, fixed=fixed) for i in range(requests)]
    prompts = [list(one.tokens) for one in sequences]
    core = core_with(*sequences, steps_in_flight=steps_in_flight)
    drive(core, ScriptedTarget(target_token), ScriptedDraft(DRAFTS[name]), late=late)
    assert [one.answer.ids for one in sequences] == [plain(target_token, prompt, 40) for prompt in prompts]
    assert core.blocks.available == core.blocks.total


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
    assert core.blocks.available == core.blocks.total


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
