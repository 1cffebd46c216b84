"""A target and a draft that say what a script says, and the loop between them and a real decoder core."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.contract.copies import SlotCopy
from engine.contract.drafts import Draft, DraftRequest
from engine.contract.ids import StepNumber
from engine.decoder.core import DecoderCore, PlannedStep, Progress

NextToken = Callable[[Sequence[int]], int]  # the token behind a history


@dataclass
class ScriptedTarget:
    """A whole pipeline of paged shards in a dictionary: every position is read from the blocks that a step names."""

    next_token: NextToken
    block_size: int = 8
    cache: dict[tuple[int, int], int] = field(default_factory=dict)
    rows: list[tuple[int, int, int]] = field(default_factory=list)  # start, length, picked

    def run(self, step: PlannedStep) -> np.ndarray:
        out: list[int] = []
        at = block_at = 0
        for start, length, _, picked_start, picked, blocks in step.rows.table.tolist():
            table = step.rows.blocks[block_at : block_at + blocks].tolist()
            for position, token in enumerate(step.tokens[at : at + length].tolist(), start):
                self.cache[table[position // self.block_size], position % self.block_size] = token
            history = [self.cache[table[p // self.block_size], p % self.block_size] for p in range(start + length)]
            out += [self.next_token(history[: start + i + 1]) for i in range(picked_start, picked_start + picked)]
            self.rows.append((start, length, picked))
            at, block_at = at + length, block_at + blocks
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
    asked: list[DraftRequest] = field(default_factory=list)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.asked += requests
        return [Draft(self._continue(request)) for request in requests]

    def _continue(self, request: DraftRequest) -> tuple[int, ...]:
        history = list(request.tokens)
        for _ in range(request.count):
            history.append(self.next_token(history))
        return tuple(history[len(request.tokens) :])


def drive(
    core: DecoderCore,
    target: ScriptedTarget | SlotTarget,
    draft: ScriptedDraft | None,
    *,
    late: bool = False,
    steps: int = 5_000,
) -> list[Progress]:
    """Run until nothing is left to do. `late`: drafts come only after the next result, as over a slow link."""
    progress: list[Progress] = []
    flying: list[PlannedStep] = []
    waiting: list[DraftRequest] = []
    for now in range(steps):
        while True:
            asked = core.draft("absent" if draft is None else "busy" if waiting else "free")
            waiting += asked
            if waiting and draft and not (late and flying):
                core.drafted(waiting, draft.propose(waiting), 0.001)
                waiting = []
                continue
            step = core.next_step(float(now))
            if step is None:
                break
            flying.append(step)
        if not flying:
            return progress
        done = flying.pop(0)
        progress += core.result(StepNumber(done.number), target.run(done), float(now) + 0.5)
    raise AssertionError(f"not finished after {steps} steps")


def plain(next_token: NextToken, prompt: Sequence[int], count: int) -> list[int]:
    """The answer without any of this."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return history[len(prompt) :]
