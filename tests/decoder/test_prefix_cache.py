"""Shared beginnings, blocks by need, and giving way: nothing of it may change an answer."""

import random
from collections.abc import Sequence as Items

import pytest

from engine.contract.ids import StepNumber
from engine.decoder.core import DecoderCore, PlannedStep
from engine.decoder.sequence import Sequence
from tests.decoder.fakes import capacity, limits
from tests.decoder.fakes import sequence as plain_sequence
from tests.decoder.scripted import ScriptedDraft, ScriptedTarget, drive, plain

BLOCK = 8


def target_token(history: Items[int]) -> int:
    """Depends on every token and place: a wrong block shows."""
    return 10 + hash(tuple(history)) % 50


def guess(history: Items[int]) -> int:
    """Right three times of four."""
    return target_token(history) + (len(history) % 4 == 0)


def opened(*, blocks: int = 64, slots: int = 16, **changes: int) -> DecoderCore:
    core = DecoderCore()
    core.open_epoch(capacity(blocks=blocks, slots=slots, **changes))
    return core


def ask(name: str, tokens: Items[int], count: int = 12, *, arrived: float = 0.0, priority: int = 0) -> Sequence:
    one = plain_sequence(name, prompt=len(tokens), max_tokens=count)
    one.tokens, one.arrived, one.priority = list(tokens), arrived, priority
    one.drafts.sources, one.drafts.fixed = ("model",), 3
    return one


def wanted(one: Sequence) -> list[int]:
    return plain(target_token, one.tokens[: one.prompt_length], one.limit - one.prompt_length)


def run(core: DecoderCore, target: ScriptedTarget, *ones: Sequence) -> None:
    for one in ones:
        core.submit(one)
    drive(core, target, ScriptedDraft(guess))
    assert [one.answer.ids for one in ones] == [wanted(one) for one in ones]


def test_a_prompt_seen_before_is_not_computed_again() -> None:
    core, target, prompt = opened(), ScriptedTarget(target_token), range(100, 140)
    cold, warm = ask("cold", prompt), ask("warm", prompt)
    run(core, target, cold)
    target.rows.clear()
    run(core, target, warm)
    assert (cold.cached, warm.cached) == (0, 32)  # 38 of 40 may be shared: four whole blocks
    assert target.rows[0][0] == 32
    assert warm.answer.ids == cold.answer.ids


@pytest.mark.parametrize("length", range(1, 36))
def test_at_least_two_tokens_of_a_prompt_are_always_computed(length: int) -> None:  # D45
    core, target, prompt = opened(), ScriptedTarget(target_token), list(range(100, 140))
    run(core, target, ask("cold", prompt))
    target.rows.clear()
    one = ask("warm", prompt[:length])
    run(core, target, one)
    assert one.cached == max(length - 2, 0) // BLOCK * BLOCK
    assert target.rows[0][:2] == (one.cached, max(length - one.cached, 2))


def test_a_chat_s_next_turn_finds_the_answer_too() -> None:
    core, target = opened(), ScriptedTarget(target_token)
    first = ask("first", range(100, 120), 30)
    run(core, target, first)
    turn = ask("second", [*range(100, 120), *first.answer.ids, 90, 91, 92])
    run(core, target, turn)
    assert turn.cached == 48  # 20 + 30 tokens, the last of which was never fed, and one of grace


def test_prompts_that_run_at_the_same_time_share_what_is_known() -> None:
    core, target, system = opened(blocks=28), ScriptedTarget(target_token), list(range(100, 164))
    run(core, target, ask("first", [*system, 1]))
    ones = [ask(str(i), [*system, 2 + i], 20) for i in range(4)]
    for one in ones:
        core.submit(one)
    core.next_step(0.0)
    assert len(core.running) == 4  # 4 x 11 blocks would be too many for 28
    assert [one.cached for one in ones] == [56] * 4
    core.lose_epoch()
    core.open_epoch(capacity(blocks=28))
    drive(core, ScriptedTarget(target_token), ScriptedDraft(guess))
    assert [one.answer.ids for one in ones] == [wanted(one) for one in ones]


def test_a_new_epoch_knows_nothing() -> None:
    core, prompt = opened(), range(100, 140)
    run(core, ScriptedTarget(target_token), ask("cold", prompt))
    core.lose_epoch()
    core.open_epoch(capacity())
    again = ask("again", prompt)
    run(core, ScriptedTarget(target_token), again)
    assert again.cached == 0


def test_further_choices_wait_for_the_first_and_share_its_prompt() -> None:
    core, target = opened(), ScriptedTarget(target_token)
    ones = [ask("r" if not i else f"r#{i}", range(100, 140)) for i in range(3)]
    run(core, target, *ones)
    assert [one.cached for one in ones] == [0, 32, 32]


def test_the_youngest_gives_way_and_comes_back_and_loses_nothing() -> None:
    core, target = opened(blocks=12, slots=4), ScriptedTarget(target_token)
    old, young = ask("old", range(100, 105), 60, arrived=1.0), ask("young", range(200, 205), 60, arrived=2.0)
    run(core, target, old, young)
    assert core.preemptions >= 1
    assert core.tables.pool.free == 12


def test_the_less_important_gives_way_first() -> None:
    core, target = opened(blocks=12, slots=4), ScriptedTarget(target_token)
    late, important = ask("late", range(100, 105), 60, arrived=1.0), ask("vip", range(200, 205), 60, arrived=2.0)
    important.priority = 1
    core.submit(late)
    core.submit(important)
    progress = drive(core, target, ScriptedDraft(guess))
    ends = [item.sequence.id for item in progress if item.delta.finish]
    assert ends == ["vip", "late"]


class Traffic:
    """Arrivals, cancels, lost epochs and steps, by chance."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.settings = {
            "prefill_tokens": self.rng.choice([4, 16, 64]),
            "steps_in_flight": self.rng.choice([1, 2, 3]),
            "min_row_tokens": self.rng.choice([1, 2]),
            "blocks": self.rng.choice([14, 24, 60]),
            "slots": self.rng.choice([2, 6]),
        }
        self.core, self.draft = opened(**self.settings), ScriptedDraft(guess)
        self.systems = [self.tokens(5, 40) for _ in range(3)]
        self.ones: list[Sequence] = []
        self.target, self.flying = ScriptedTarget(target_token), list[PlannedStep]()

    def tokens(self, least: int, most: int) -> list[int]:
        return [self.rng.randint(100, 999) for _ in range(self.rng.randint(least, most))]

    def happen(self, turn: int) -> None:
        chance = self.rng.random()
        if chance < 0.15:
            prompt = [*self.rng.choice(self.systems), *self.tokens(0, 30)]
            count, priority = self.rng.randint(1, 30), self.rng.choice([0, 0, 0, 1])
            one = ask(f"q{turn}", prompt, count, arrived=float(turn), priority=priority)
            one.drafts.fixed = self.rng.choice([1, 4, 8])
            self.ones.append(one)
            self.core.submit(one)
        elif chance < 0.18 and self.ones:
            gone = self.ones.pop(self.rng.randrange(len(self.ones)))
            if not gone.answer.finish:
                self.core.remove(gone)
        elif chance < 0.19:
            self.core.lose_epoch()
            self.core.open_epoch(capacity(**self.settings))
            self.target, self.flying = ScriptedTarget(target_token), []

    def step(self, turn: int) -> None:
        while True:
            if asked := self.core.draft("free"):
                self.core.drafted(asked, self.draft.propose(asked), 0.001)
            step = self.core.next_step(float(turn))
            if step is None:
                break
            self.flying.append(step)
        if self.flying:
            done = self.flying.pop(0)
            self.core.result(StepNumber(done.number), self.target.run(done), turn + 0.5)
        check_blocks(self.core, self.settings["blocks"])


@pytest.mark.parametrize("seed", range(60))
def test_random_traffic_in_a_small_pool_ends_right_and_no_block_is_lost_or_held_twice(seed: int) -> None:
    traffic = Traffic(seed)
    for turn in range(300):
        traffic.happen(turn)
        traffic.step(turn)
    for turn in range(300, 3000):
        traffic.step(turn)
    assert [one.answer.ids for one in traffic.ones] == [wanted(one) for one in traffic.ones]
    assert not traffic.core.running
    assert not traffic.core.waiting
    assert traffic.core.tables.pool.free == traffic.settings["blocks"]


def check_blocks(core: DecoderCore, blocks: int) -> None:
    held = {block for one in core.running for block in one.blocks.tolist()}
    assert len(held) + core.tables.pool.free == blocks
    for one in core.running:
        mine = one.blocks.tolist()
        assert len(mine) == len(set(mine))
        writable = mine[one.sent // BLOCK :]
        others = [b for other in core.running if other is not one for b in other.blocks.tolist()]
        assert not set(writable) & set(others)


def test_the_limits_of_the_fakes_are_those_of_this_file() -> None:
    assert limits().block_size == BLOCK
