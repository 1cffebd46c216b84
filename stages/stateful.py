# pyright: basic
"""Runs a shard as the paper does: one infer request per slot keeps a sequence's state; rejected tokens are masked out.

On models with sliding windows a masked position would take a place in the window: there every rejection compacts.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov

from engine.contract.copies import SlotCopy
from engine.contract.messages import Rows
from stages.checks import RowChecks, ShardShape, check_copies
from stages.openvino_errors import device_errors
from stages.runner import Capabilities
from stages.slot import SlotMask, Spare, check_start


class StatefulRunner:
    """See Runner. `compile_shard` makes a stateful shard, on the last stage after `pick_before_head` on axis 1."""

    def __init__(
        self,
        compile_shard: Callable[[], ov.CompiledModel],
        sequence_axes: dict[str, int],
        shape: ShardShape,
        *,
        slots: int,
        context_length: int,
        spare: Spare,
    ) -> None:
        """`sequence_axes`: the axis of each state, by name, that counts tokens; states left out stop compaction."""
        self._compile, self._axes, self._shape, self._spare = compile_shard, sequence_axes, shape, spare
        self.compiled = compile_shard()
        self._slots: dict[int, _Slot] = {}
        self.shares_model = not self._states_interfere()
        self.compactions = self.copies = 0
        self.capabilities: Final = Capabilities(
            kind="stateful",
            blocks=0,
            block_size=0,
            slots=slots,
            min_row_tokens=1,
            max_step_tokens=0,
            context_length=context_length,
        )
        self._checks = RowChecks(self.capabilities, shape)

    def infer(self, rows: Rows, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """See Runner. Rows run one after the other."""
        self._checks.check(rows, value)
        self._check_starts(rows)
        parts: list[npt.NDArray[Any]] = []
        at = 0
        with device_errors("the device failed"):
            for start, length, slot, first_picked, picked, _ in rows.table.tolist():
                parts.append(
                    self._run_row(slot, start, value[at : at + length], np.arange(first_picked, first_picked + picked))
                )
                at += length
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def copy_slots(self, copies: Sequence[SlotCopy]) -> None:
        """See Runner. What is copied has no rejected positions left, where states can be taken apart."""
        held = {number: slot.mask.length for number, slot in self._slots.items()}
        check_copies(copies, held, self.capabilities.slots)
        with device_errors("the device failed"):
            for source, target, tokens in copies:
                self._copy(self._slots[source], self._slots.get(target) or self._new_slot(target), tokens)

    def reset(self) -> None:
        """See Runner."""
        with device_errors("the device failed"):
            for slot in self._slots.values():
                slot.restart()

    def close(self) -> None:
        """See Runner."""
        self._slots.clear()
        del self.compiled

    def _check_starts(self, rows: Rows) -> None:
        """All rows, before any of them changes a state. Raises StepError."""
        lengths: dict[int, int] = {}
        for i, (start, length, slot) in enumerate(rows.table[:, :3].tolist()):
            held = lengths.get(slot, self._slots[slot].mask.length if slot in self._slots else 0)
            check_start(start, held, row=i)
            lengths[slot] = start + length

    def _run_row(
        self, number: int, start: int, value: npt.NDArray[Any], picked: npt.NDArray[np.int64]
    ) -> npt.NDArray[Any]:
        slot = self._slots.get(number) or self._new_slot(number)
        if start == 0:
            slot.restart()
        else:
            slot.mask.rewind(start)
            if not self._spare.allows(slot.mask.masked, slot.mask.length):
                self._compact(slot)
        return self._feed(slot, start, value, picked)

    def _new_slot(self, number: int) -> "_Slot":
        compiled = self.compiled if self.shares_model or not self._slots else self._compile()
        slot = self._slots[number] = _Slot(compiled)
        return slot

    def _feed(
        self, slot: "_Slot", start: int, value: npt.NDArray[Any], picked: npt.NDArray[np.int64]
    ) -> npt.NDArray[Any]:
        tokens = len(value)
        inputs = {
            "attention_mask": slot.mask.append(tokens),
            "position_ids": np.arange(start, start + tokens, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
            "picked": picked,
        }
        if self._shape.first:
            inputs["input_ids"] = value.astype(np.int64)[None]
        else:
            inputs["inputs_embeds"] = value[None]
        for name, port in slot.ports.items():
            slot.request.set_tensor(port, ov.Tensor(inputs[name]))
        slot.request.infer()
        out = slot.request.get_output_tensor(0).data
        return out.reshape(-1, out.shape[-1]).copy()  # the next row of this slot overwrites it

    def _compact(self, slot: "_Slot") -> None:
        """Copy the state without its rejected positions."""
        states = slot.request.query_state()
        if any(state.name not in self._axes for state in states):
            return  # some state has no axis that counts tokens: masks must do
        keep = slot.mask.compact()
        for state in states:
            kept = np.take(state.state.data, keep, axis=self._axes[state.name])
            state.state = ov.Tensor(np.ascontiguousarray(kept))
        self.compactions += 1

    def _copy(self, source: "_Slot", target: "_Slot", tokens: int) -> None:
        states = source.request.query_state()
        if all(state.name in self._axes for state in states):
            target.mask, keep = source.mask.fork(tokens)
            kept = {s.name: np.take(s.state.data, keep, axis=self._axes[s.name]) for s in states}
        else:
            target.mask = source.mask.twin()
            target.mask.rewind(tokens)
            kept = {s.name: s.state.data.copy() for s in states}
        for state in target.request.query_state():
            state.state = ov.Tensor(np.ascontiguousarray(kept[state.name]))
        self.copies += 1

    def _states_interfere(self) -> bool:
        """Start-up probe: does what one request of the model computes, or resets, change another's state?"""
        with device_errors("cannot run the shard"):
            alone, first, second = (_Slot(self.compiled) for _ in range(3))
            wanted = [self._feed(alone, at, self._sample(at), np.arange(2)) for at in (0, 2, 4)]
            found = [self._feed(first, 0, self._sample(0), np.arange(2))]
            self._feed(second, 0, self._sample(6), np.arange(2))
            found.append(self._feed(first, 2, self._sample(2), np.arange(2)))
            second.restart()
            found.append(self._feed(first, 4, self._sample(4), np.arange(2)))
        return not all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True))

    def _sample(self, seed: int) -> npt.NDArray[Any]:
        noise = np.random.default_rng(seed)
        if self._shape.first:
            return noise.integers(0, self._shape.vocabulary, 2).astype(np.int32)
        return noise.standard_normal((2, self._shape.hidden_size), np.float32)


class _Slot:
    """One sequence: its request and which of its positions count."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self.request = compiled.create_infer_request()
        self.ports = {port.get_any_name(): port for port in compiled.inputs}
        self.mask = SlotMask()

    def restart(self) -> None:
        """Empty it."""
        if self.mask.physical:
            self.request.reset_state()
        self.mask.rewind(0)


def sequence_axes(model: ov.Model) -> dict[str, int]:
    """Axis that counts tokens of every state with exactly one such axis: the dynamic one that is not the batch."""
    axes: dict[str, int] = {}
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            shape = list(node.get_output_partial_shape(0))
            dynamic = [axis for axis, dimension in enumerate(shape) if axis and dimension.is_dynamic]
            if len(dynamic) == 1:
                axes[node.get_attributes()["variable_id"]] = dynamic[0]
    return axes
