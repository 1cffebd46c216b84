"""All stages of a split in one process: for verification, tests and measurements, not for serving."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from engine.contract.copies import SlotCopy
from engine.contract.manifest import load_manifest
from engine.contract.messages import ROW_COLUMNS, FloatArray, IntArray, Rows
from stages.loader import load_runner
from stages.runner import Runner
from stages.settings import RunnerOptions


class Chain:
    """Runners one after the other, as steps pass through a pipeline."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        self.runners = tuple(runners)

    @classmethod
    def open(cls, folder: Path, options: RunnerOptions) -> Self:
        """Load every stage of a split. Raises ManifestError, DeviceError."""
        manifest = load_manifest(folder)
        return cls([load_runner(folder, manifest, i, options) for i in range(len(manifest.stages))])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for runner in self.runners:
            runner.close()

    @property
    def block_size(self) -> int:
        """Tokens per block; 0 when no stage keeps blocks."""
        return max(runner.capabilities.block_size for runner in self.runners)

    def copy_slots(self, copies: Sequence[SlotCopy]) -> None:
        """On every stage."""
        for runner in self.runners:
            runner.copy_slots(copies)

    def infer(self, rows: Rows, tokens: IntArray) -> FloatArray:
        """Logits of the picked positions, float32 (picked, vocabulary)."""
        value: npt.NDArray[Any] = tokens
        for runner in self.runners:
            value = runner.infer(rows, value)
        return value


def make_rows(rows: Sequence[tuple[int, int, int, int, int]], block_size: int, blocks_per_slot: int = 16) -> Rows:
    """Rows (slot, start, length, picked start, picked count); slot i owns the i-th run of `blocks_per_slot` blocks."""
    table = np.zeros((len(rows), ROW_COLUMNS), np.int32)
    blocks: list[npt.NDArray[np.int32]] = []
    for line, (slot, start, length, picked_start, picked) in zip(table, rows, strict=True):
        used = -(-(start + length) // block_size) if block_size else 0
        line[:] = (start, length, slot, picked_start, picked, used)
        blocks.append(np.arange(slot * blocks_per_slot, slot * blocks_per_slot + used, dtype=np.int32))
    return Rows(table, np.concatenate(blocks))


def prefill(chain: Chain, slot: int, prompt: Sequence[int]) -> FloatArray:
    """Logits behind a prompt, float32 (1, vocabulary), fed in steps no larger than every stage allows."""
    limits = [runner.capabilities.max_step_tokens for runner in chain.runners]
    most = min((limit for limit in limits if limit), default=len(prompt))
    parts = -(-len(prompt) // most)
    edges = [len(prompt) * i // parts for i in range(parts + 1)]  # even parts: no tail of one token
    logits: FloatArray | None = None
    for start, end in pairwise(edges):
        row = (slot, start, end - start, end - start - 1, int(end == len(prompt)))
        logits = chain.infer(make_rows([row], chain.block_size), np.array(prompt[start:end], np.int32))
    assert logits is not None
    return logits.copy()


def generate(chain: Chain, prompts: Sequence[Sequence[int]], count: int, *, min_row_tokens: int) -> list[list[int]]:
    """`count` greedy tokens for each prompt: prompts one after the other, then all sequences together in every step."""
    size = chain.block_size
    ids = [list(prompt) for prompt in prompts]
    logits = np.concatenate([prefill(chain, slot, prompt) for slot, prompt in enumerate(ids)])
    for step in range(count):
        for sequence, token in zip(ids, logits.argmax(-1).tolist(), strict=True):
            sequence.append(token)
        if step == count - 1:
            break
        rows = [(slot, len(sequence) - 1, min_row_tokens, 0, 1) for slot, sequence in enumerate(ids)]
        dummies = [0] * (min_row_tokens - 1)
        logits = chain.infer(make_rows(rows, size), np.array([[s[-1], *dummies] for s in ids], np.int32).ravel())
    return [sequence[len(prompt) :] for sequence, prompt in zip(ids, prompts, strict=True)]
