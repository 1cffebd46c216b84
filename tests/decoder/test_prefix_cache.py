"""What is computed once is not computed again, and no answer changes; small pools preempt, and lose nothing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.contract.ids import RequestId, StepNumber
from engine.decoder.answer import Answer, EndRules
from engine.decoder.core import DecoderCore, PlannedStep
from engine.decoder.sequence import Sequence as Running
from engine.decoder.speculation import DraftState
from tests.blockcache import digest
from tests.decoder.fakes import EOS, LetterStream, capacity, stateful
from tests.decoder.scripted import ScriptedDraft, ScriptedTarget, SlotTarget, drive, plain

BLOCK = 8
TEXT = [(7 * i + i // 5) % 26 for i in range(200)]


def target_token(history: Sequence[int]) -> int:
    return digest(history) % 26


def asking(name: str, prompt: Sequence[int], max_tokens: int = 6, priority: int = 0) -> Running:
    return Running(
        id=RequestId(name),
        tokens=list(prompt),
        prompt_length=len(prompt),
        limit=len(prompt) + max_tokens,
        answer=Answer(EndRules(eos_ids=frozenset({EOS}), max_tokens=max_tokens), LetterStream()),
        arrived=0.0,
        priority=priority,
    )


def opened(**changes: int) -> DecoderCore:
    core = DecoderCore()
    core.open_epoch(capacity(**changes))
    return core


def answered(core: DecoderCore, target: ScriptedTarget | SlotTarget, *sequences: Running) -> None:
    """Ask all at once; every answer is the plain one."""
    prompts = [list(one.tokens) for one in sequences]
    for one in sequences:
        core.submit(one)
    drive(core, target, None)
    for one, prompt in zip(sequences, prompts, strict=True):
        assert one.answer.ids == plain(target_token, prompt, one.answer.rules.max_tokens), one.id


def computed(target: ScriptedTarget | SlotTarget) -> int:
    """Tokens in all rows."""
    return sum(length for _, length, _ in target.rows)


def one_step(core: DecoderCore, target: ScriptedTarget, flying: list[PlannedStep]) -> None:
    """Send what can be sent, and take one result."""
    while (step := core.next_step(0.0)) is not None:
        flying.append(step)
    done = flying.pop(0)
    core.result(StepNumber(done.number), target.run(done), 0.0)


# -- sharing blocks


def test_a_prompt_that_was_computed_is_not_computed_again() -> None:
    core, target = opened(), ScriptedTarget(target_token)
    answered(core, target, asking("cold", TEXT[:50]))
    target.rows.clear()
    warm = asking("warm", TEXT[:50])
    answered(core, target, warm)
    assert warm.cached == 48
    assert target.rows[0][:2] == (48, 2)


@pytest.mark.parametrize("length", range(8, 27))
def test_the_last_two_tokens_are_always_computed(length: int) -> None:  # D45
    core, target = opened(), ScriptedTarget(target_token)
    warm = asking("warm", TEXT[:length])
    answered(core, target, asking("cold", TEXT[:40]))
    answered(core, target, warm)
    assert warm.cached == (length - 2) // BLOCK * BLOCK


def test_prompts_share_only_what_they_have_in_common() -> None:
    core, target = opened(), ScriptedTarget(target_token)
    answered(core, target, asking("one", TEXT[:50]))
    other = asking("other", [*TEXT[:20], 25, *TEXT[21:50]])
    answered(core, target, other)
    assert other.cached == 16


class Colliding(int):
    """A token whose hash is everybody's."""

    def __hash__(self) -> int:
        return 1


def test_prompts_with_equal_hashes_share_nothing_but_what_is_equal() -> None:  # D44
    core, target = opened(), ScriptedTarget(target_token)
    prompts = [[Colliding(token) for token in text] for text in (TEXT[:40], TEXT[40:80], [*TEXT[:20], *TEXT[60:80]])]
    asked = [asking(str(i), prompt) for i, prompt in enumerate(prompts)]
    for one in asked:
        answered(core, target, one)
    assert [one.cached for one in asked] == [0, 0, 16]


def test_the_answer_is_part_of_what_the_next_turn_finds() -> None:
    core, target = opened(), ScriptedTarget(target_token)
    first = asking("first", TEXT[:20], max_tokens=30)
    answered(core, target, first)
    second = asking("second", [*first.tokens, 1, 2, 3])
    answered(core, target, second)
    assert second.cached == 48


def test_running_sequences_share_the_blocks_of_what_they_have_in_common() -> None:
    core, target = opened(steps_in_flight=1), ScriptedTarget(target_token)
    one, two = asking("one", TEXT[:40], 30), asking("two", [*TEXT[:33], 1, 2, 3], 30)
    for sequence in (one, two):
        core.submit(sequence)
    flying: list[PlannedStep] = []
    while two.slot < 0:
        one_step(core, target, flying)
    assert one.table.blocks[:4] == two.table.blocks[:4]
    assert core.blocks.holders(one.table.blocks[0]) == 2


def test_many_answers_to_one_prompt_compute_it_once() -> None:
    core, target = opened(), ScriptedTarget(target_token)
    answered(core, target, *(asking(str(i), TEXT[:82], 1) for i in range(6)))
    assert computed(target) == 82 + 5 * 2


def test_who_waits_for_a_beginning_lets_others_go_first() -> None:
    core, target = opened(prefill_tokens=16), ScriptedTarget(target_token)
    leader, twin, other = asking("leader", TEXT[:82]), asking("twin", TEXT[:82]), asking("other", TEXT[100:110])
    for sequence in (leader, twin, other):
        core.submit(sequence)
    one_step(core, target, [])
    assert [one.id for one in core.running] == ["leader", "other"]


def test_who_waits_for_a_beginning_goes_on_when_its_reader_is_cancelled() -> None:
    core, target = opened(prefill_tokens=16), ScriptedTarget(target_token)
    leader, twin = asking("leader", TEXT[:82]), asking("twin", TEXT[:82])
    flying: list[PlannedStep] = []
    core.submit(leader)
    core.submit(twin)
    one_step(core, target, flying)
    core.remove(leader)
    one_step(core, target, flying)
    assert core.running == [twin]
    assert twin.cached == 16


def test_a_new_epoch_knows_nothing() -> None:
    core, target = opened(), ScriptedTarget(target_token)
    answered(core, target, asking("cold", TEXT[:50]))
    core.lose_epoch()
    core.open_epoch(capacity())
    again = asking("again", TEXT[:50])
    answered(core, ScriptedTarget(target_token), again)
    assert again.cached == 0


def test_beside_stages_with_a_state_per_slot_no_block_is_shared() -> None:
    core, target = DecoderCore(), ScriptedTarget(target_token)
    core.open_epoch(replace(capacity(), stateful=True))
    answered(core, target, asking("cold", TEXT[:50]))
    again = asking("again", TEXT[:50])
    answered(core, target, again)
    assert again.cached == 0


def test_a_known_block_that_is_needed_is_given_away_and_its_prompt_computed_again() -> None:
    core, target = opened(blocks=8), ScriptedTarget(target_token)
    answered(core, target, asking("cold", TEXT[:40]))
    answered(core, target, asking("large", TEXT[100:156]))
    again = asking("again", TEXT[:40])
    answered(core, target, again)
    assert again.cached == 0


def test_at_the_end_of_the_context_no_row_rewrites_a_known_block() -> None:
    """A context one token longer than whole blocks: the last row starts a token earlier, in the block before."""
    core, target = opened(context_length=41, steps_in_flight=1), ScriptedTarget(target_token)
    one = asking("one", TEXT[:30], 11)
    core.submit(one)
    while core.running or core.waiting:
        step = core.next_step(0.0)
        assert step is not None
        assert not written(step) & {b for b in range(64) if b in core.blocks.index}
        core.result(step.number, target.run(step), 0.0)
    assert one.answer.ids == plain(target_token, TEXT[:30], 11)
    assert (39, 2, 1) in target.rows


def written(step: PlannedStep) -> set[int]:
    """The blocks that a step writes."""
    found: set[int] = set()
    at = 0
    for start, length, _, _, _, count in step.rows.table.tolist():
        table = step.rows.blocks[at : at + count].tolist()
        found |= {table[position // BLOCK] for position in range(start, start + length)}
        at += count
    return found


def test_the_figures_count_what_was_saved() -> None:
    core, target = opened(), ScriptedTarget(target_token)
    for name in "abc":
        answered(core, target, asking(name, TEXT[:50]))
    figures = core.prefix_cache()
    assert (figures.lookups, figures.hits, figures.saved_tokens, figures.cached_blocks) == (3, 2, 96, 6)


# -- blocks by need


def test_a_sequence_takes_blocks_for_what_there_is_and_not_for_its_limit() -> None:
    core = opened(blocks=64)
    core.submit(asking("one", TEXT[:10], 200))
    core.next_step(0.0)
    assert core.blocks.held == 2


def test_when_blocks_run_out_the_youngest_goes_back_to_the_front_and_nothing_is_lost() -> None:
    core, target = opened(blocks=8, steps_in_flight=1), ScriptedTarget(target_token)
    old, young, late = (asking(name, TEXT[30 * i : 30 * i + 8], 45) for i, name in enumerate(("old", "young", "late")))
    prompts = [list(one.tokens) for one in (old, young, late)]
    for one in (old, young, late):
        core.submit(one)
    flying: list[PlannedStep] = []
    while not core.preemptions:
        one_step(core, target, flying)
    assert core.running[0] is old
    assert core.waiting[0] in (young, late)
    drive(core, target, None)
    assert [one.answer.ids for one in (old, young, late)] == [plain(target_token, prompt, 45) for prompt in prompts]


def test_the_least_important_is_preempted_before_the_youngest() -> None:
    core, target = opened(blocks=10, steps_in_flight=1), ScriptedTarget(target_token)
    low, high = asking("low", TEXT[:8], 60), asking("high", TEXT[30:38], 60, priority=1)
    core.submit(low)
    core.submit(high)
    flying: list[PlannedStep] = []
    while not core.preemptions:
        one_step(core, target, flying)
    assert list(core.waiting) == [low]


def test_who_was_preempted_finds_its_own_blocks_again() -> None:
    core, target = opened(blocks=12, steps_in_flight=1), ScriptedTarget(target_token)
    old, young = asking("old", TEXT[:8], 70), asking("young", TEXT[50:90], 10)
    core.submit(old)
    core.submit(young)
    flying: list[PlannedStep] = []
    for _ in range(3):
        one_step(core, target, flying)
    core._preempt(young)
    core.next_step(0.0)
    assert young.confirmed >= 40
    assert young.cached == 0  # it was computed for it, once


def test_a_sequence_as_large_as_the_pool_finishes_whatever_else_arrives() -> None:
    core, target = opened(blocks=8), ScriptedTarget(target_token)
    others = [asking(str(i), TEXT[i : i + 20], 20) for i in range(5)]
    answered(core, target, asking("large", TEXT[:20], 44), *others)


# -- slots


def test_a_new_turn_takes_over_the_slot_of_the_last_one_without_a_copy() -> None:
    core, target = DecoderCore(), SlotTarget(target_token)
    core.open_epoch(stateful())
    first = asking("first", TEXT[:40], 10)
    answered(core, target, first)
    second = asking("second", [*first.tokens, 1, 2, 3])
    answered(core, target, second)
    assert second.cached == 49
    assert not target.copies


def test_a_prompt_that_shares_only_its_beginning_has_it_copied_and_the_other_keeps_its_own() -> None:
    core, target = DecoderCore(), SlotTarget(target_token)
    core.open_epoch(stateful())
    answered(core, target, asking("first", TEXT[:100]))
    answered(core, target, asking("branch", [*TEXT[:40], 1, 2, 3]))
    again = asking("again", TEXT[:100])
    answered(core, target, again)
    assert [copy.tokens for copy in target.copies] == [40]
    assert again.cached == 98


def test_a_running_slot_is_copied_up_to_what_is_certain() -> None:
    core, target = DecoderCore(), SlotTarget(target_token)
    core.open_epoch(stateful())
    answered(core, target, *(asking(str(i), TEXT[:82], 10) for i in range(3)))
    assert [copy.tokens for copy in target.copies] == [80, 80]


def test_with_one_slot_it_is_taken_over_as_far_as_it_serves() -> None:
    core, target = DecoderCore(), SlotTarget(target_token)
    core.open_epoch(stateful(slots=1))
    answered(core, target, asking("first", TEXT[:100]))
    branch = asking("branch", [*TEXT[:40], 1, 2, 3])
    answered(core, target, branch)
    assert branch.cached == 40
    assert not target.copies


def test_few_common_tokens_are_computed_again() -> None:
    core, target = DecoderCore(), SlotTarget(target_token)
    core.open_epoch(stateful())
    answered(core, target, asking("first", TEXT[:100]))
    branch = asking("branch", [*TEXT[:31], 25, 25, 25])
    answered(core, target, branch)
    assert branch.cached == 0


def test_a_copy_is_made_before_the_source_gets_another_owner() -> None:
    """Both are admitted for the same step: the copy from the slot, and its new owner."""
    core, target = DecoderCore(), SlotTarget(target_token)
    core.open_epoch(stateful(slots=2, steps_in_flight=1))
    answered(core, target, asking("first", TEXT[:100]))
    branch, stranger = asking("branch", [*TEXT[:40], 1, 2, 3]), asking("stranger", TEXT[120:160])
    answered(core, target, branch, stranger)
    assert branch.cached == 40
    assert target.copies


@pytest.mark.parametrize("every", [2, 5])
def test_slots_are_shared_beside_drafts_that_fail(every: int) -> None:
    def erring(history: Sequence[int]) -> int:
        return (target_token(history) + (len(history) % every == 0)) % 26

    core, target = DecoderCore(), SlotTarget(target_token)
    core.open_epoch(stateful(steps_in_flight=3))
    for turn in range(4):
        ones = [asking(f"{turn}.{i}", TEXT[: 60 + 5 * i + turn], 20) for i in range(3)]
        prompts = [list(one.tokens) for one in ones]
        for one in ones:
            one.drafts = DraftState(("model",), 3)
            core.submit(one)
        drive(core, target, ScriptedDraft(erring), late=bool(turn % 2))
        assert [one.answer.ids for one in ones] == [plain(target_token, prompt, 20) for prompt in prompts]
    assert core.prefix_cache().saved_tokens > 0
