"""A target and a draft that say what a script says, and the loop between them and a real decoder core."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.contract.copies import SlotCopy
from engine.contract.drafts import Draft, DraftRequest
from engine.decoder.answer import Answer, EndRules
from engine.decoder.core import DecoderCore, PlannedStep, Progress
from engine.decoder.sequence import Sequence as Running
from engine.decoder.speculation import DraftState
from tests.blockcache import BlockCache, digest
from tests.decoder import fakes

BLOCKS = 256
NextToken = Callable[[Sequence[int]], int]  # the token behind a history


def target_token(history: Sequence[int]) -> int:
    """A letter that depends on everything before it."""
    return digest(history) % 26


def erring(every: int) -> NextToken:
    """Wrong wherever the length of the history is a multiple of `every`."""

    def token(history: Sequence[int]) -> int:
        right = target_token(history)
        return (right + 1) % 26 if len(history) % every == 0 else right

    return token


class ScriptedTarget:
    """A whole pipeline of paged shards: every position is read from the blocks that a step names."""

    def __init__(self, next_token: NextToken, block_size: int = 8) -> None:
        self.next_token, self._cache = next_token, BlockCache(BLOCKS, block_size)
        self.rows: list[tuple[int, int, int]] = []  # start, length, picked

    def run(self, step: PlannedStep) -> np.ndarray:
        out: list[int] = []
        for row in self._cache.feed(step.rows, step.tokens):
            assert -1 not in row.history
            out += map(self.next_token, row.picks())
            self.rows.append((row.start, row.length, row.picked))
        return np.array(out, np.int32)


@dataclass
class SlotTarget:
    """A whole pipeline of stateful shards: what a slot holds is found by its number, and moved by copies alone."""

    next_token: NextToken
    slots: dict[int, list[int]] = field(default_factory=dict)
    rows: list[tuple[int, int, int]] = field(default_factory=list)  # start, length, picked
    copies: list[SlotCopy] = field(default_factory=list)

    def run(self, step: PlannedStep) -> np.ndarray:
        for source, target, tokens in step.copies:
            assert tokens <= len(self.slots[source])
            assert source != target
            self.slots[target] = self.slots[source][:tokens]
        self.copies += step.copies
        out: list[int] = []
        at = 0
        for start, length, slot, picked_start, picked, _ in step.rows.table.tolist():
            assert start <= len(self.slots.get(slot, []))
            history = self.slots[slot] = self.slots.get(slot, [])[:start] + step.tokens[at : at + length].tolist()
            out += [self.next_token(history[: start + i + 1]) for i in range(picked_start, picked_start + picked)]
            self.rows.append((start, length, picked))
            at += length
        return np.array(out, np.int32)


@dataclass
class ScriptedDraft:
    """A draft model without a model."""

    next_token: NextToken

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(tuple(plain(self.next_token, request.tokens, request.count))) for request in requests]


@dataclass
class Loop:
    """What stands between the three: steps out, results back in order, drafts when they are asked for."""

    core: DecoderCore
    target: ScriptedTarget | SlotTarget
    draft: ScriptedDraft | None
    late: bool = False  # drafts come only after the next result, as over a slow link
    flying: list[PlannedStep] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    _asked: list[DraftRequest] = field(default_factory=list)

    def turns(self, limit: int = 5_000) -> Iterator[list[PlannedStep]]:
        """Until nothing is left to do: the steps in flight, before the result of the oldest is taken."""
        for now in range(limit):
            self._fill(float(now))
            if not self.flying:
                return
            yield self.flying
            self.take(now + 0.5)
        raise AssertionError(f"not finished after {limit} turns")

    def take(self, now: float) -> None:
        """The result of the oldest step in flight."""
        done = self.flying.pop(0)
        self.progress += self.core.result(done.number, self.target.run(done), now)

    def _fill(self, now: float) -> None:
        while True:
            self._asked += self.core.draft("absent" if self.draft is None else "busy" if self._asked else "free")
            if self._asked and self.draft and not (self.late and self.flying):
                self.core.drafted(self._asked, self.draft.propose(self._asked), 0.001)
                self._asked = []
            elif (step := self.core.next_step(now)) is not None:
                self.flying.append(step)
            else:
                return


def drive(
    core: DecoderCore, target: ScriptedTarget | SlotTarget, draft: ScriptedDraft | None, *, late: bool = False
) -> list[Progress]:
    """Run until nothing is left to do."""
    loop = Loop(core, target, draft, late)
    for _ in loop.turns():
        pass
    return loop.progress


def plain(next_token: NextToken, prompt: Sequence[int], count: int) -> list[int]:
    """The answer without any of this."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return history[len(prompt) :]


def sequence(name: str = "r", prompt: int = 7, max_tokens: int = 40, fixed: int | None = None, **rules: Any) -> Running:
    """A request that asks the draft model, always for `fixed` tokens if that is given."""
    made = fakes.sequence(name, prompt, max_tokens, first=len(name))
    made.answer = Answer(EndRules(eos_ids=frozenset({fakes.EOS}), max_tokens=max_tokens, **rules), fakes.LetterStream())
    made.drafts = DraftState(("model",), fixed)
    return made


def core_with(*sequences: Running, **limits: int) -> DecoderCore:
    """A core with an open pipeline and these requests."""
    core = DecoderCore()
    core.open_epoch(fakes.capacity(blocks=BLOCKS, **limits))
    for one in sequences:
        core.submit(one)
    return core
