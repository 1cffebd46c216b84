"""Random arrivals, common beginnings, cancels, lost epochs, late drafts and small pools: every answer is the plain one.

After every event the books are checked: each block is in one place, and held as often as tables name it; no step writes
what is known. At the end nothing is held.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.contract.drafts import DraftRequest
from engine.contract.ids import StepNumber
from engine.decoder.core import DecoderCore, PlannedStep
from engine.decoder.sequence import Sequence as Running
from engine.decoder.speculation import DraftState
from tests.decoder.fakes import capacity, stateful
from tests.decoder.scripted import ScriptedDraft, ScriptedTarget, SlotTarget, plain
from tests.decoder.test_prefix_cache import TEXT, asking, target_token, written

pytestmark = pytest.mark.pipelines

MOST_TURNS = 6_000


def erring(history: Sequence[int]) -> int:
    return (target_token(history) + (len(history) % 4 == 0)) % 26


@dataclass
class Simulation:
    """One decoder on a pipeline of dictionaries, in a random world."""

    rng: random.Random
    paged: bool
    blocks: int
    settings: dict[str, int]
    core: DecoderCore = field(default_factory=DecoderCore)
    draft: ScriptedDraft = field(default_factory=lambda: ScriptedDraft(erring))
    flying: list[PlannedStep] = field(default_factory=list)
    drafting: list[DraftRequest] = field(default_factory=list)
    asked: list[tuple[Running, list[int]]] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)

    def open(self) -> None:
        self.flying.clear()
        if self.paged:
            self.target: ScriptedTarget | SlotTarget = ScriptedTarget(target_token)
            self.core.open_epoch(capacity(blocks=self.blocks, slots=6, **self.settings))
        else:
            self.target = SlotTarget(target_token)
            self.core.open_epoch(stateful(slots=3, **self.settings))

    def arrive(self) -> None:
        common = self.rng.choice([0, 5, 16, 33, 47, 60])
        prompt = TEXT[:common] + [self.rng.randrange(26) for _ in range(self.rng.randint(1, 25))]
        if self.asked and self.rng.random() < 0.4:  # a twin, or the next turn of a chat
            prompt = [*self.rng.choice(self.asked)[0].tokens[:90], *([1] * self.rng.randint(0, 3))]
        one = asking(f"r{len(self.asked)}", prompt, self.rng.randint(1, 30), self.rng.choice([0, 0, 0, 1]))
        one.drafts = (
            DraftState(("model",), self.rng.choice([1, 3, None])) if self.rng.random() < 0.5 else DraftState(())
        )
        if self.core.fits(one.limit) and one.limit <= self.settings["context_length"]:
            self.asked.append((one, list(prompt)))
            self.core.submit(one)

    def send(self) -> None:
        if self.drafting and (not self.flying or self.rng.random() < 0.5):
            self.core.drafted(self.drafting, self.draft.propose(self.drafting), 0.001)
            self.drafting = []
        self.drafting += self.core.draft("busy" if self.drafting else "free")
        while (step := self.core.next_step(0.0)) is not None:
            known = {block for block in range(self.blocks) if block in self.core.blocks.index}
            assert not self.paged or not written(step) & known
            self.flying.append(step)

    def receive(self) -> None:
        if self.flying:
            done = self.flying.pop(0)
            self.core.result(StepNumber(done.number), self.target.run(done), 0.0)

    def disturb(self) -> None:
        event = self.rng.random()
        if event < 0.02 and self.core.running:
            one = self.rng.choice(self.core.running)
            self.core.remove(one)
            self.cancelled.add(one.id)
        elif event < 0.03:
            self.core.lose_epoch()
            self.open()

    def check(self) -> None:
        pool = self.core.blocks
        named = [block for one in self.core.running for block in one.table.blocks]
        assert pool.free + pool.cached + pool.held == pool.total
        assert all(pool.holders(block) == named.count(block) for block in range(pool.total))
        slots = [one.slot for one in self.core.running]
        assert len(set(slots)) == len(slots)
        assert len(slots) + self.core.tables.slots.free == (6 if self.paged else 3)

    def run(self, arrivals: int) -> None:
        self.open()
        for turn in range(MOST_TURNS):
            if len(self.asked) < arrivals and self.rng.random() < 0.4:
                self.arrive()
            self.send()
            self.receive()
            if len(self.asked) < arrivals:
                self.disturb()
            self.check()
            if turn > 300 and not self.core.running and not self.core.waiting:
                break
        assert not self.core.waiting
        assert not self.core.running
        assert self.core.blocks.available == self.core.blocks.total
        for one, prompt in self.asked:
            if one.id not in self.cancelled:
                assert one.answer.ids == plain(target_token, prompt, one.answer.rules.max_tokens), one.id


def simulate(seed: int, *, paged: bool, blocks: int) -> DecoderCore:
    rng = random.Random(seed)
    limits = {"prefill_tokens": rng.choice([8, 16, 64]), "steps_in_flight": rng.choice([1, 2, 3])}
    limits["context_length"] = rng.choice([120, 121, 160])
    simulation = Simulation(rng, paged, blocks, limits)
    simulation.run(40)
    return simulation.core


@pytest.mark.parametrize("blocks", [17, 24, 60])
@pytest.mark.parametrize("seed", range(12))
def test_with_blocks_every_answer_is_the_plain_one(seed: int, blocks: int) -> None:
    simulate(seed, paged=True, blocks=blocks)


@pytest.mark.parametrize("seed", range(20))
def test_with_slots_every_answer_is_the_plain_one(seed: int) -> None:
    simulate(seed, paged=False, blocks=0)


def test_the_simulations_preempt_share_and_copy() -> None:
    """Otherwise they would prove nothing of these."""
    small = [simulate(seed, paged=True, blocks=17) for seed in range(4)]
    assert sum(core.preemptions for core in small) > 10
    assert sum(core.prefix_cache().hits for core in small) > 20
    assert simulate(1, paged=False, blocks=0).prefix_cache().hits > 5


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(16, 40), st.booleans())
def test_whatever_the_world_does_no_answer_changes(seed: int, blocks: int, paged: bool) -> None:
    simulate(seed, paged=paged, blocks=blocks if paged else 0)
