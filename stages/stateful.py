# pyright: basic
"""The stateful runner: OpenVINO keeps the KV cache, one InferRequest per slot on one shared CompiledModel (D3).

Rejected positions stay in the cache and are masked out (mask-based rewind; paper, technique 3): trimming every state
costs more than a step. When too many are masked, the states are compacted once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov

from engine.contract.errors import DeviceError, ErrorCode, StepError
from engine.contract.messages import Rows
from export_tools.passes.head import PICKED_INPUT
from stages.runner import Capabilities
from stages.shard_io import RowLimits, check_rows

if TYPE_CHECKING:
    from stages.loader import Shard

MAX_MASKED_SHARE: Final = 0.5  # of the physical cache; attention over masked positions costs as much as over others
MIN_MASKED: Final = 64  # positions; below that compacting costs more than it saves
_SEQUENCE_AXIS: Final = 2  # of a state [batch, kv heads, tokens, head size]


@dataclass(eq=False)
class Slot:
    """One sequence's request; `valid` says of each physical cache position whether it counts."""

    request: ov.InferRequest
    valid: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def length(self) -> int:
        """Logical length of the sequence."""
        return int(self.valid.sum())


class StatefulRunner:
    """See Runner. Rows are executed one after the other."""

    def __init__(
        self, compiled: ov.CompiledModel, shard: "Shard", *, slots: int, again: Callable[[], ov.CompiledModel]
    ) -> None:
        self._shard = shard
        self._value_name = "input_ids" if shard.first else "inputs_embeds"
        self._inputs = {port.get_any_name() for port in compiled.inputs}
        manifest = shard.manifest
        self._limits = RowLimits(
            context_length=manifest.context_length,
            blocks=0,
            block_size=0,
            slots=slots,
            hidden_size=0 if shard.first else manifest.hidden_size,
            vocabulary=manifest.vocabulary,
        )
        self.capabilities = Capabilities(
            kind="stateful",
            blocks=0,
            block_size=0,
            slots=slots,
            min_row_tokens=1,
            context_length=manifest.context_length,
        )
        self._slots: dict[int, Slot] = {}
        self._compiled, self._again = compiled, again
        self.shared = not self._states_interfere()
        self.compactions = 0

    def infer(self, rows: Rows, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """See Runner."""
        check_rows(rows, value, self._limits)
        slots = [self._rewind(int(slot), int(start)) for slot, start in zip(rows.slots, rows.starts, strict=True)]
        out, at = [], 0
        for slot, line in zip(slots, rows.table.tolist(), strict=True):
            _, length, _, picked_start, picked, _ = line
            piece = value[at : at + length]
            at += length
            result = self._run(slot, piece, np.arange(picked_start, picked_start + picked, dtype=np.int64))
            if not self._shard.last or picked:
                out.append(result.copy() if len(slots) > 1 else result)  # each request overwrites its output
        if not out:
            return np.empty((0, self._shard.manifest.vocabulary), np.float32)
        return out[0] if len(out) == 1 else np.concatenate(out)

    def reset(self) -> None:
        """See Runner."""
        for slot in self._slots.values():
            self._clear(slot)

    def close(self) -> None:
        """See Runner."""
        self._slots.clear()
        del self._compiled

    def _rewind(self, index: int, start: int) -> Slot:
        """The slot with exactly `start` valid positions. Raises StepError when it has fewer."""
        slot = self._slots.get(index)
        if slot is None:
            compiled = self._compiled if self.shared or not self._slots else self._again()
            slot = self._slots[index] = Slot(compiled.create_infer_request())
        if start == 0:
            self._clear(slot)
        rejected = slot.length - start
        if rejected < 0:
            raise StepError(
                ErrorCode.INVALID_ROWS, f"slot {index} holds {slot.length} tokens, the row starts at {start}"
            )
        if rejected:
            slot.valid[np.flatnonzero(slot.valid)[-rejected:]] = 0
            masked = len(slot.valid) - start
            if masked >= MIN_MASKED and masked > MAX_MASKED_SHARE * len(slot.valid):
                self._compact(slot)
        return slot

    def _run(self, slot: Slot, value: npt.NDArray[Any], picked: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        start, length = slot.length, len(value)
        mask = np.concatenate([slot.valid, np.ones(length, np.int64)])
        inputs: dict[str, npt.NDArray[Any]] = {
            self._value_name: (value.astype(np.int64) if self._shard.first else value)[None],
            "attention_mask": mask[None],
            "position_ids": np.arange(start, start + length, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
            PICKED_INPUT: picked if len(picked) else np.zeros(1, np.int64),
        }
        try:
            slot.request.infer({name: array for name, array in inputs.items() if name in self._inputs})
        except RuntimeError as error:
            raise DeviceError(f"inference failed: {str(error).strip().splitlines()[-1]}") from error
        slot.valid = mask
        out = slot.request.get_output_tensor(0).data
        return out.reshape(-1, out.shape[-1])

    def _clear(self, slot: Slot) -> None:
        if len(slot.valid):
            slot.request.reset_state()
            slot.valid = np.empty(0, np.int64)

    def _compact(self, slot: Slot) -> None:
        """Drop masked positions from every state."""
        keep = np.flatnonzero(slot.valid)
        for state in slot.request.query_state():
            cache = np.asarray(state.state.data)
            state.state = ov.Tensor(np.ascontiguousarray(np.take(cache, keep, axis=_SEQUENCE_AXIS)))
        slot.valid = np.ones(len(keep), np.int64)
        self.compactions += 1

    def _states_interfere(self) -> bool:
        """Whether two requests of one compiled model disturb each other's states (seen on some GPU drivers)."""
        rng = np.random.default_rng(0)
        manifest = self._shard.manifest
        width = () if self._shard.first else (manifest.hidden_size,)
        values = [
            rng.integers(0, manifest.vocabulary, 4, np.int32)
            if self._shard.first
            else rng.random((4, *width), np.float32)
            for _ in range(3)
        ]
        one, other = (Slot(self._compiled.create_infer_request()) for _ in range(2))
        picked = np.array([3], np.int64)
        self._run(one, values[0], picked)
        alone = self._run(one, values[1], picked).copy()
        self._clear(one)
        self._run(one, values[0], picked)
        self._run(other, values[2], picked)
        self._clear(other)
        return not np.array_equal(alone, self._run(one, values[1], picked))
