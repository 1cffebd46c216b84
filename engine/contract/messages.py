"""What travels through the pipeline: frozen values, columns instead of objects where there are many.

A *step* is one pass of several *rows* through all stages; a row is the tokens of one sequence in that step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine.contract.errors import ErrorCode
from engine.contract.ids import Epoch, Incarnation, StageIndex, StepNumber
from engine.contract.side import Logprobs, RowSide

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
ROW_COLUMNS: Final = 6


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of one step, as columns. Stages forward them unchanged.

    A row's `start` is the truth: whatever a stage holds at or past it is overwritten, so a rejected draft needs no
    message of its own. `picked_starts`/`picked_counts` name the positions within the row whose next token is wanted.
    """

    table: IntArray
    """int32 (rows, 6): start, length, slot, picked start (within the row), picked count, block count."""
    blocks: IntArray
    """int32 (sum of block counts,): logical blocks of all rows, in order; they cover positions [0, start + length)."""

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.table.shape[0]

    @property
    def starts(self) -> IntArray:
        """Tokens of each sequence that are in the cache before its row."""
        return self.table[:, 0]

    @property
    def lengths(self) -> IntArray:
        """Tokens of each row."""
        return self.table[:, 1]

    @property
    def slots(self) -> IntArray:
        """Slot of each row's sequence, for runners that keep a state per sequence."""
        return self.table[:, 2]

    @property
    def picked_starts(self) -> IntArray:
        """First position within each row whose next token is wanted."""
        return self.table[:, 3]

    @property
    def picked_counts(self) -> IntArray:
        """How many positions of each row are wanted; 0 for a prefill chunk that is not the last."""
        return self.table[:, 4]

    @property
    def block_counts(self) -> IntArray:
        """How many entries of `blocks` belong to each row."""
        return self.table[:, 5]

    @property
    def tokens(self) -> int:
        """Tokens of all rows together."""
        return int(self.table[:, 1].sum())

    def picked(self) -> npt.NDArray[np.int64]:
        """Flat token indices, int64 (sum of picked counts,), of the positions whose next token is wanted."""
        counts = self.picked_counts.astype(np.int64)
        begins = np.cumsum(self.lengths, dtype=np.int64) - self.lengths
        first = np.repeat(begins + self.picked_starts, counts)
        within = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        return first + within


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """One pass of one batch of rows, on its way into a stage."""

    epoch: Epoch
    number: StepNumber
    incarnation: Incarnation  # of the worker it is meant for
    rows: Rows
    value: IntArray | FloatArray
    """Token ids, int32 (tokens,), into stage 0; hidden states, float32 (tokens, hidden), into the others."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])  # rare fields only
    sides: int = 0  # StepSides that the last stage needs for it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepSide:
    """What only the last stage needs of a step: goes straight there, on its step subject, ahead of the step."""

    epoch: Epoch
    number: StepNumber  # of the step
    incarnation: Incarnation  # of the last stage's worker
    rows: tuple[RowSide, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepResult:
    """What the last stage sends straight to the decoder."""

    epoch: Epoch
    number: StepNumber
    incarnation: Incarnation  # of the last stage's worker
    tokens: IntArray
    """int32 (sum of picked counts,): the next token after each picked position."""
    logprobs: Sequence[Logprobs | None] = ()  # per picked position; empty when no row wants any


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed:
    """A step that some stage refused or could not compute."""

    epoch: Epoch
    number: StepNumber
    incarnation: Incarnation  # of the worker that refused
    stage: StageIndex
    code: ErrorCode
    message: str


Frame = Step | StepSide | StepResult | StepFailed
