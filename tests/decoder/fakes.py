"""Small real things that stand in for large ones."""

from collections.abc import Sequence as Items
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from engine.contract.ids import RequestId, StepNumber
from engine.decoder.answer import Answer, EndRules
from engine.decoder.batching import StepLimits
from engine.decoder.core import Capacity, DecoderCore, PlannedStep, Progress
from engine.decoder.sequence import Sequence
from tests.blockcache import BlockCache

EOS = 999


class LetterStream:
    """Token n is the letter n (0 is a), at once."""

    def feed(self, ids: Items[int]) -> str:
        return "".join(chr(ord("a") + i % 26) for i in ids)

    def flush(self) -> str:
        return ""


def limits(**changes: Any) -> StepLimits:
    values: dict[str, Any] = {
        "steps_in_flight": 2,
        "smoothness": 1.6,
        "prefill_tokens": 64,
        "max_tokens": 0,
        "min_row_tokens": 2,
        "context_length": 256,
        "block_size": 8,
        "max_bytes": 1 << 20,
        "hidden_size": 16,
    }
    return StepLimits(**(values | changes))


def capacity(*, blocks: int = 64, slots: int = 16, stages: int = 0, **changes: Any) -> Capacity:
    """`stages`: so many, and they decide on the steps in flight."""
    return Capacity(blocks=blocks, slots=slots, limits=limits(**changes), stages=stages or 2, adaptive=stages > 0)


def stateful(slots: int = 4, **changes: int) -> Capacity:
    """Stages that keep a state per slot, and no blocks."""
    return replace(capacity(blocks=0, slots=slots, block_size=0, min_row_tokens=1, **changes), stateful=True)


def sequence(
    name: str = "r", prompt: int = 5, max_tokens: int = 6, *, stop: tuple[str, ...] = (), first: int = 1
) -> Sequence:
    rules = EndRules(eos_ids=frozenset({EOS}), max_tokens=max_tokens, stop=stop)
    return Sequence(
        id=RequestId(name),
        tokens=list(range(first, first + prompt)),
        prompt_length=prompt,
        limit=prompt + max_tokens,
        answer=Answer(rules, LetterStream()),
        arrived=0.0,
    )


class CountingPipeline:
    """A whole pipeline in an array: remembers each block's tokens, and answers 'last token + 1'.

    It refuses what a real one would compute wrongly: positions never written, or written by somebody else.
    """

    def __init__(self, block_size: int, blocks: int = 64) -> None:
        self._cache = BlockCache(blocks, block_size)

    def run(self, step: PlannedStep) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
        out: list[int] = []
        for row in self._cache.feed(step.rows, step.tokens):
            assert -1 not in row.history
            for known in row.picks():
                assert all(b == a + 1 for a, b in pairwise(known)), known
                out.append(known[-1] + 1)
        return np.array(out, np.int32)


def drive(
    core: DecoderCore, pipeline: CountingPipeline, *, flying: list[PlannedStep] | None = None, steps: int = 10_000
) -> list[Progress]:
    """Run until nothing is left to do; results come back in order, as many steps in flight as the core wants."""
    progress: list[Progress] = []
    flying = [] if flying is None else flying
    for now in range(steps):
        while (step := core.next_step(float(now))) is not None:
            flying.append(step)
        if not flying:
            return progress
        done = flying.pop(0)
        progress += core.result(StepNumber(done.number), pipeline.run(done), float(now))
    raise AssertionError(f"not finished after {steps} steps")
