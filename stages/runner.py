"""What a shard runner is: the seam between a stage and OpenVINO."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy.typing as npt

from engine.contract.copies import SlotCopy
from engine.contract.messages import Rows

RunnerKind = Literal["paged", "stateful", "static"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a runner can do; the decoder works with the intersection over its pipeline."""

    kind: RunnerKind
    blocks: int  # logical blocks in the pool; 0: no blocks
    block_size: int  # tokens per logical block; 0: no blocks
    slots: int  # sequences it keeps a state for; 0: any number
    min_row_tokens: int  # rows must be at least this long (2 in profile exact on paged: see docs/decisions)
    max_step_tokens: int  # of all rows together; 0: no limit (paged, exact: matrix kernels change with the size)
    context_length: int  # tokens
    window: int = 0  # tokens of a sequence that its slot keeps, once there are more; 0: all


def room(can: Capabilities) -> str:
    """For people: what the KV cache holds."""
    return f"{can.blocks * can.block_size} tokens" if can.blocks else f"{can.slots} sequences"


class Runner(Protocol):
    """Runs one shard on one device. Not thread-safe: one call at a time, on any thread."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    def infer(self, rows: Rows, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Run one step.

        `value`: int32 (tokens,) into stage 0, else float32 (tokens, hidden). Returns float32 (tokens, hidden),
        or on the last stage logits, float32 (picked positions, vocabulary). The array is valid until the next call.
        Raises StepError for rows it must not compute, DeviceError when the device fails.
        """
        ...

    def copy_slots(self, copies: Sequence[SlotCopy]) -> None:
        """Give slots what others hold, one copy after the other.

        Raises StepError, before any is made, for slots or lengths that do not exist, and on runners without slots;
        DeviceError when the device fails.
        """
        ...

    def reset(self) -> None:
        """Forget every sequence (a new epoch starts with empty tables)."""
        ...

    def close(self) -> None:
        """Free device memory."""
        ...
