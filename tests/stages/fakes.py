"""Small real things that stand in for shards and decoders."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.contract.control import Open
from engine.contract.copies import SlotCopy
from engine.contract.errors import DeviceError, ErrorCode, StepError
from engine.contract.ids import Epoch, Incarnation, StageIndex, StepNumber
from engine.contract.messages import Rows, Step
from engine.transport.subjects import Subjects
from stages.identity import Identity
from stages.runner import Capabilities

SUBJECTS = Subjects("test", "model")
DECODER = "d0"
HIDDEN = 4
VOCABULARY = 50


class AddingShard:
    """Output = input + 1. The first stage spreads ids over the hidden size, the last one makes one-hot logits."""

    def __init__(self, *, last: bool = False) -> None:
        self.capabilities = Capabilities(
            kind="paged", blocks=16, block_size=8, slots=0, min_row_tokens=1, max_step_tokens=0, context_length=64
        )
        self._last = last
        self.seen: list[list[float]] = []
        self.resets = 0
        self.copied: list[SlotCopy] = []
        self.threads: set[str] = set()
        self.closed = False
        self.fail_next: Exception | None = None
        self.gate = threading.Event()  # cleared: the device is busy
        self.gate.set()
        self.computing = threading.Event()

    def infer(self, rows: Rows, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        self.computing.set()
        assert self.gate.wait(10)
        self.threads.add(threading.current_thread().name)
        if rows.starts.min() < 0:
            raise StepError(ErrorCode.INVALID_ROWS, "row 0 starts before the sequence")
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        out = value.astype(np.float32) + 1
        hidden = out if out.ndim == 2 else np.repeat(out[:, None], HIDDEN, axis=1)
        self.seen.append(hidden[:, 0].tolist())
        if not self._last:
            return hidden
        return np.eye(VOCABULARY, dtype=np.float32)[hidden[rows.picked(), 0].astype(int)]

    def copy_slots(self, copies: Sequence[SlotCopy]) -> None:
        self.copied += copies

    def reset(self) -> None:
        self.resets += 1

    def close(self) -> None:
        self.closed = True


def broken_device() -> DeviceError:
    return DeviceError("the device failed: on purpose")


def identity(stage: int = 0, stages: int = 1, incarnation: int = 7, **changes: Any) -> Identity:
    fields: dict[str, Any] = {
        "first_layer": 2 * stage,
        "last_layer": 2 * stage + 2,
        "model": SUBJECTS.model,
        "split": "split",
        "runner": "paged",
        "profile": "exact",
        "device": "CPU",
        "host": "here",
        "pid": 1,
    }
    return Identity(stage=StageIndex(stage), stages=stages, incarnation=Incarnation(incarnation), **(fields | changes))


def opening(epoch: int = 1, *, then: Identity | None = None, **changes: Any) -> Open:
    fields: dict[str, Any] = {
        "decoder": DECODER,
        "done": SUBJECTS.done(DECODER, epoch),
        "next_subject": SUBJECTS.stage(then.stage, then.incarnation) if then else "",
        "next_incarnation": then.incarnation if then else 0,
    }
    return Open(epoch=epoch, **(fields | changes))


def rows(*lines: tuple[int, int, int, int]) -> Rows:
    """Rows (start, length, picked start, picked count), each with blocks of its own."""
    table: list[list[int]] = []
    blocks: list[int] = []
    for i, (start, length, picked_start, picked) in enumerate(lines):
        used = -(-max(start + length, 1) // 8)
        table.append([start, length, i, picked_start, picked, used])
        blocks += [2 * i + j for j in range(used)]
    return Rows(np.array(table, np.int32).reshape(-1, 6), np.array(blocks, np.int32))


def step(
    number: int = 0, *, epoch: int = 1, incarnation: int = 7, start: int = 0, tokens: tuple[int, ...] = (5, 6)
) -> Step:
    return Step(
        epoch=Epoch(epoch),
        number=StepNumber(number),
        incarnation=Incarnation(incarnation),
        rows=rows((start, len(tokens), len(tokens) - 1, 1)),
        value=np.array(tokens, np.int32),
    )
