"""A fleet in virtual time: the real decoder core, stages that cost what was measured, links that only delay.

Unlike the simulation of the tests, from which it comes, it drafts: a draft model that is right with a given chance and
takes its time. The decoder itself costs nothing but a share of each hop.
"""

import heapq
import random
from dataclasses import dataclass, field, replace

from bench.curves import Curve
from engine.contract.drafts import Draft, DraftRequest
from engine.decoder.core import Capacity
from engine.decoder.speculation import DraftState
from tests.decoder.fakes import capacity
from tests.decoder.simulation import Simulation, next_token, rolled

PROMPT = 40  # tokens


@dataclass(frozen=True, kw_only=True)
class DraftModel:
    """How it drafts."""

    right: float  # the chance of a token behind right ones
    seconds: float  # per token


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """What is simulated."""

    stages: tuple[Curve, ...]
    hop: float  # seconds from process to process, what each spends on a message included
    jitter: float = 0.0  # share of a hop
    depth: int = 0  # steps in flight; 0: as many as are found to pay
    prefill_tokens: int = 256
    draft: DraftModel | None = None

    def capacity(self) -> Capacity:
        """Of the pipeline: enough blocks for everybody."""
        common = {"block_size": 16, "min_row_tokens": 1, "max_bytes": 1 << 22, "context_length": 4096}
        common |= {"blocks": 1 << 15, "slots": 512, "prefill_tokens": self.prefill_tokens, "hidden_size": 576}
        if self.depth:
            return replace(capacity(**common, steps_in_flight=self.depth), stages=len(self.stages))
        return capacity(**common, stages=len(self.stages))


@dataclass
class _Run(Simulation):
    """Answers of sequences that draft."""

    model: DraftModel | None = None
    _drafting: bool = False
    _guesses: random.Random = field(default_factory=lambda: random.Random(7))

    def run_all(self) -> float:
        """Seconds until the last answer is whole."""
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()
            self._ask()
            while (step := self.core.next_step(self.now)) is not None:
                self._publish(step)
                self._ask()
        return self.now

    def _ask(self) -> None:
        if self.model is None or self._drafting:
            return
        if requests := self.core.draft("free"):
            drafts = [self._draft(request) for request in requests]
            steps = max(len(draft.tokens) for draft in drafts) + 1
            seconds, self._drafting = self.model.seconds * steps, True
            self.at(self.now + seconds, lambda: self._drafted(requests, drafts, seconds))

    def _drafted(self, requests: list[DraftRequest], drafts: list[Draft], seconds: float) -> None:
        self._drafting = False
        self.core.drafted(requests, drafts, seconds)

    def _draft(self, request: DraftRequest) -> Draft:
        assert self.model is not None
        total, tokens = 0, list[int]()
        for token in request.tokens:
            total = rolled(total, token)
        chance = 1.0
        for number in range(request.count):
            chance *= self.model.right if number >= request.ahead else 1.0
            if chance < request.least and number >= request.ahead + request.kept:
                break
            right = self._guesses.random() < self.model.right
            tokens.append(next_token(total) if right else 1)
            total = rolled(total, tokens[-1])
        return Draft(tuple(tokens))


def tokens_per_second(fleet: Fleet, users: int, tokens: int) -> float:
    """Of all users together, who ask at once; their prompts' time included, as bench/load.py counts."""
    run = _Run(fleet.capacity(), fleet.stages, fleet.hop, fleet.jitter, model=fleet.draft)  # type: ignore[arg-type]
    for number in range(users):
        run.submit(0.0, f"u{number}", PROMPT, tokens)
    if fleet.draft is not None:
        run.at(0.0, lambda: _let_draft(run))
    seconds = run.run_all()
    assert all(len(one.answer.ids) == tokens for _, one in run.all.values())
    return users * tokens / seconds


def _let_draft(run: _Run) -> None:
    for _, one in run.all.values():
        one.drafts = DraftState(("model",))
