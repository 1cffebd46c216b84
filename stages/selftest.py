"""Start-up self-test: which of the five equalities hold on this device, bit for bit, with made-up input.

"streaming" is true by construction and "stages" cannot be seen from one shard: both are left out.
"""

import hashlib
import logging
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine.contract.errors import DeviceError
from engine.contract.messages import IntArray, Rows
from stages.checks import ShardShape
from stages.runner import Runner
from stages.settings import EXACT_STEP_TOKENS

PREFIX: Final = 30  # tokens of the first row; what follows crosses the boundary of a block of 32
FOLLOWING: Final = 4  # tokens whose results are compared
SPARE: Final = 4  # tokens: the longest row that starts at the last compared position
log = logging.getLogger("shardline.stage")


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What was found."""

    equalities: dict[str, bool]  # keys "speculation", "neighbours", "replay"; none where the context is too short
    computed: str  # digest of all that was computed


@dataclass(frozen=True, slots=True)
class Piece:
    """A row in the making: tokens [start, start + length) of a sequence's input, the first `picked` of them wanted."""

    sequence: int  # slot, and which blocks
    start: int
    value: npt.NDArray[Any]
    picked: int


def self_test(runner: Runner, shape: ShardShape) -> SelfTest:
    """The runner is warm and empty afterwards. Raises DeviceError."""
    began, can = time.monotonic(), runner.capabilities
    if can.context_length < PREFIX + FOLLOWING + SPARE:
        return SelfTest({}, "")
    probe = _Probe(runner, shape)
    reference = probe.decode()
    equalities = {"speculation": probe.speculate(reference), "replay": probe.replay(reference)}
    if can.slots != 1:  # with a single slot there are no neighbours
        equalities["neighbours"] = probe.beside_others()
    runner.reset()
    verdict = ", ".join(f"{name} {'equal' if held else 'not equal'}" for name, held in equalities.items())
    log.info("self-test, bit for bit: %s (%.1f s with warm-up)", verdict, time.monotonic() - began)
    return SelfTest(equalities, probe.computed.hexdigest())


def check_device(runner: Runner, shape: ShardShape) -> None:
    """Whether it computes at all, after it failed on a step. Raises DeviceError."""
    if runner.capabilities.context_length < PREFIX + FOLLOWING + SPARE:
        return
    for result in _Probe(runner, shape).decode():
        if not np.isfinite(result).all():
            raise DeviceError("the device computes what are no numbers")
    runner.reset()


class _Probe:
    def __init__(self, runner: Runner, shape: ShardShape) -> None:
        self._runner, self._last = runner, shape.last
        self._least = runner.capabilities.min_row_tokens
        self.computed = hashlib.sha256()
        noise = np.random.default_rng(7)
        tokens = max(PREFIX + FOLLOWING + SPARE, runner.capabilities.max_step_tokens)
        if shape.first:
            self._input: npt.NDArray[Any] = noise.integers(0, shape.vocabulary, tokens).astype(np.int32)
        else:
            self._input = noise.standard_normal((tokens, shape.hidden_size), np.float32)

    def decode(self) -> list[npt.NDArray[Any]]:
        """One token at a time, in the shortest rows: the reference, one result per following position."""
        self._run(self._row(0, 0, PREFIX))
        return [self._run(self._short(0, at))[0] for at in range(PREFIX, PREFIX + FOLLOWING)]

    def speculate(self, reference: list[npt.NDArray[Any]]) -> bool:
        """A verify row whose last drafts are rejected, then one that is accepted whole."""
        draft = np.concatenate((self._input[PREFIX : PREFIX + 2], self._input[:2]))
        first = self._run(Piece(0, PREFIX, draft, 4))[:2]
        second = self._run(self._row(0, PREFIX + 2, FOLLOWING - 2, picked=FOLLOWING - 2))
        return bool(np.array_equal(np.concatenate((first, second)), np.stack(reference)))

    def beside_others(self) -> bool:
        """A short sequence alone, then again beside another one's prefill, as large as a step may be, and decode."""
        most = self._runner.capabilities.max_step_tokens
        other = most - SPARE if most else SPARE + 1
        self._run(self._row(0, 0, SPARE))
        alone = self._run(self._short(0, SPARE))
        self._run(self._row(1, 0, other), self._row(0, 0, SPARE))
        beside = self._run(self._short(0, SPARE), self._short(1, SPARE + 1))
        return bool(np.array_equal(beside[:1], alone))

    def replay(self, reference: list[npt.NDArray[Any]]) -> bool:
        """The cache rebuilt in two chunks elsewhere, as after a lost worker."""
        at = PREFIX + FOLLOWING - 1
        self._run(self._row(2, 0, at // 2))
        self._run(self._row(2, at // 2, at - at // 2))
        return bool(np.array_equal(self._run(self._short(2, at))[0], reference[-1]))

    def _row(self, sequence: int, start: int, length: int, *, picked: int = 0) -> Piece:
        return Piece(sequence, start, self._input[start : start + length], picked)

    def _short(self, sequence: int, start: int) -> Piece:
        return self._row(sequence, start, self._least, picked=1)

    def _run(self, *pieces: Piece) -> npt.NDArray[Any]:
        """Results of the picked positions, copied."""
        can = self._runner.capabilities
        rows = rows_of(pieces, can.block_size, can.slots)
        out = self._runner.infer(rows, np.concatenate([piece.value for piece in pieces]))
        found = out.copy() if self._last else out[rows.picked()]
        self.computed.update(found.tobytes())
        return found


def rows_of(pieces: tuple[Piece, ...], block_size: int, slots: int) -> Rows:
    """Rows of one step; each sequence has blocks of its own, and a slot of its own while there are enough."""
    most = -(-max(PREFIX + FOLLOWING + SPARE, EXACT_STEP_TOKENS) // block_size) if block_size else 0
    table: list[list[int]] = []
    blocks: list[IntArray] = []
    for piece in pieces:
        length = len(piece.value)
        count = -(-(piece.start + length) // block_size) if block_size else 0
        slot = piece.sequence % slots if slots else 0
        table.append([piece.start, length, slot, 0, piece.picked, count])
        blocks.append(np.arange(count, dtype=np.int32) + piece.sequence * most)
    return Rows(np.array(table, np.int32), np.concatenate(blocks))
