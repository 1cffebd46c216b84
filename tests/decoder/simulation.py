"""A pipeline in virtual time: the real decoder core, stages that only cost time, links that only delay.

What a stage computes is a rolling sum over the history of a row, kept per cache position: a row that starts behind a
foreign or an unwritten position gives another answer, in time that grows with the row alone.
"""

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

import numpy as np

from engine.contract.ids import StepNumber
from engine.decoder.core import Capacity, DecoderCore, PlannedStep
from engine.decoder.sequence import Sequence as Running
from tests.decoder.fakes import sequence

PRIME = 1_000_003


def rolled(total: int, token: int) -> int:
    return (total * 31 + token + 7) % PRIME


def next_token(total: int) -> int:
    return 1000 + total % 9973


def answer_to(prompt: Sequence[int], length: int) -> list[int]:
    total, answer = 0, []
    for token in prompt:
        total = rolled(total, token)
    for _ in range(length):
        answer.append(next_token(total))
        total = rolled(total, answer[-1])
    return answer


@dataclass(frozen=True)
class Stage:
    """Seconds."""

    fixed: float = 0.015
    row: float = 0.002
    token: float = 0.001
    position: float = 2e-6

    def seconds(self, step: PlannedStep) -> float:
        rows = step.rows
        context = int((rows.starts + rows.lengths).sum())
        return self.fixed + self.row * rows.count + self.token * len(step.tokens) + self.position * context


@dataclass
class Simulation:
    """Requests, cancels and losses go in with `at`, `submit`; `run` plays until nothing is left."""

    capacity: Capacity
    stages: tuple[Stage, ...] = (Stage(), Stage())
    hop: float = 0.0  # seconds, per link
    jitter: float = 0.0  # share of a hop
    noise: float = 0.0  # share of a stage's time
    seed: int = 0
    core: DecoderCore = field(default_factory=DecoderCore)
    now: float = 0.0
    busy: list[float] = field(default_factory=list)
    tokens: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # when each came
    steps: list[tuple[float, PlannedStep]] = field(default_factory=list)
    all: dict[str, tuple[list[int], Running]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._open()
        self.busy = [0.0 for _ in self.stages]

    def _open(self) -> None:
        self._epoch = next(self._order)
        self._cache: dict[tuple[int, int], int] = {}
        self._free = [self.now] * len(self.stages)
        self._arrived = [self.now] * (len(self.stages) + 1)  # links keep the order
        self.core.open_epoch(self.capacity)

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def submit(self, time: float, name: str, prompt: int, answer: int, priority: int = 0) -> None:
        def arrive() -> None:
            one = sequence(name, prompt, answer, first=1000 + 5000 * len(self.all))  # nobody begins like another
            one.arrived, one.priority = time, priority
            self.all[name] = (list(one.tokens), one)
            self.core.submit(one)

        self.at(time, arrive)

    def cancel(self, time: float, name: str) -> None:
        def stop() -> None:
            one = self.all[name][1]
            if not one.answer.finish:
                self.core.remove(one)
                one.answer.end("cancelled")

        self.at(time, stop)

    def lose_epoch(self, time: float, pause: float = 0.5) -> None:
        def lose() -> None:
            if self.core.capacity:
                self.core.lose_epoch()
                self.at(self.now + pause, self._open)

        self.at(time, lose)

    def run(self, until: float = 1e9, check: Callable[[], None] = lambda: None) -> None:
        """Play all events up to `until`; `check` is called after each."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
            while (step := self.core.next_step(self.now)) is not None:
                self._publish(step)
            check()

    def _publish(self, step: PlannedStep) -> None:
        self.steps.append((self.now, step))
        epoch, moment = self._epoch, self._hop(0, self.now)
        for index, stage in enumerate(self.stages):
            seconds = stage.seconds(step) * self._random.uniform(1 - self.noise, 1 + self.noise)
            moment = self._free[index] = max(moment, self._free[index]) + seconds
            self.busy[index] += seconds
            moment = self._hop(index + 1, moment)
        found = self._compute(step)
        self.at(moment, lambda: self._returned(epoch, step.number, found))

    def _hop(self, link: int, moment: float) -> float:
        delay = self.hop * self._random.uniform(1 - self.jitter, 1 + self.jitter)
        self._arrived[link] = max(self._arrived[link], moment + delay)
        return self._arrived[link]

    def _returned(self, epoch: int, number: StepNumber, found: list[int]) -> None:
        if epoch != self._epoch or self.core.capacity is None:
            return
        for progress in self.core.result(number, np.array(found, np.int32), self.now):
            self.tokens[progress.sequence.id] += [self.now] * len(progress.delta.ids)

    def _compute(self, step: PlannedStep) -> list[int]:
        size, found, at, block_at = self.capacity.limits.block_size, list[int](), 0, 0
        for start, length, _, picked_start, picked, blocks in step.rows.table.tolist():
            table = step.rows.blocks[block_at : block_at + blocks].tolist()
            total = self._cache[table[(start - 1) // size], (start - 1) % size] if start else 0
            for i, token in enumerate(step.tokens[at : at + length].tolist()):
                total = rolled(total, token)
                self._cache[table[(start + i) // size], (start + i) % size] = total
                if picked_start <= i < picked_start + picked:
                    found.append(next_token(total))
            at, block_at = at + length, block_at + blocks
        return found

    def tokens_per_second(self, since: float, until: float) -> float:
        return sum(since <= moment < until for times in self.tokens.values() for moment in times) / (until - since)

    def gaps(self, name: str, since: float = 0.0, until: float = 1e9) -> list[float]:
        times = self.tokens[name]
        return [b - a for a, b in pairwise(times) if since <= b < until]


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]
