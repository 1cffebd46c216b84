# pyright: basic
"""Runs a shard of fixed shapes, as an NPU wants it: KV cache on the host, several sequences in one inference.

Two graphs see the same cache: one takes a token and its drafts of every slot, one takes a long piece of a prompt.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov

from engine.contract.copies import SlotCopy
from engine.contract.messages import Rows
from engine.contract.static import StaticLimits
from export_tools.passes.head import PICKED_INPUT
from export_tools.passes.shapes import HIDDEN_INPUT
from export_tools.passes.static import CLOSED, LABELS, MASK, PAST, PRESENT
from stages.checks import RowChecks, ShardShape
from stages.columns import Columns
from stages.openvino_errors import device_errors
from stages.pieces import Inference, Piece, plan_inferences
from stages.runner import Capabilities


class StaticRunner:
    """See Runner. `short`, `long`: a shard after `to_static`, with `limits.lanes` and `limits.prefill_chunk` tokens."""

    def __init__(
        self,
        short: ov.CompiledModel,
        long: ov.CompiledModel | None,
        shape: ShardShape,
        limits: StaticLimits,
        *,
        context_length: int,
    ) -> None:
        self.compiled, self._limits, self._shape = short, limits, shape
        self._columns = Columns(limits)
        with device_errors("cannot make the KV cache"):
            self._cache = {
                _label(port): np.zeros(list(port.get_shape()), port.get_element_type().to_dtype())
                for port in short.inputs
                if _label(port).startswith(PAST)
            }
            self._graphs = {
                long_: _Graph(graph, self._cache) for long_, graph in ((False, short), (True, long)) if graph
            }
        self.inferences = 0
        self.capabilities: Final = Capabilities(
            kind="static",
            blocks=0,
            block_size=0,
            slots=limits.slots,
            min_row_tokens=1,
            max_step_tokens=0,
            context_length=context_length if limits.sinks else limits.context,
            window=limits.context if limits.sinks else 0,
        )
        self._checks = RowChecks(self.capabilities, shape)

    def infer(self, rows: Rows, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """See Runner. Rows that fit into one inference share it, others are cut."""
        self._checks.check(rows, value)
        self._columns.check_rows(rows)
        wanted = int(rows.picked_counts.sum()) if self._shape.last else rows.tokens
        out = np.empty((wanted, self._shape.vocabulary if self._shape.last else self._shape.hidden_size), np.float32)
        with device_errors("the device failed"):
            for inference in plan_inferences(rows, self._limits):
                self._run(inference, value, out)
        return out

    def copy_slots(self, copies: Sequence[SlotCopy]) -> None:
        """See Runner. Columns are copied, so that no slot ever depends on another one's."""
        self._columns.check_copies(copies)
        for copy in copies:
            theirs, mine = self._columns.copy(copy)
            for cache in self._cache.values():
                cache[:, :, mine] = cache[:, :, theirs]

    def reset(self) -> None:
        """See Runner."""
        self._columns.reset()

    def close(self) -> None:
        """See Runner."""
        self._graphs.clear()
        self._cache.clear()
        del self.compiled

    def _run(self, inference: Inference, value: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        graph = self._graphs[inference.long]
        graph.clear()
        for piece in inference.pieces:
            graph.put(piece, self._lane(inference, piece), value, self._columns, self._limits)
        graph.request.infer()
        self.inferences += 1
        results = graph.request.get_output_tensor(0).data[0]
        for piece in inference.pieces:
            lane = self._lane(inference, piece)
            graph.keep(piece, lane, self._columns, self._cache)
            if not self._shape.last:
                out[piece.offset : piece.offset + piece.length] = results[lane : lane + piece.length]
            elif piece.picked:
                first = 0 if graph.picked is not None else lane + piece.picked_from
                out[piece.result : piece.result + piece.picked] = results[first : first + piece.picked]

    def _lane(self, inference: Inference, piece: Piece) -> int:
        return 0 if inference.long else piece.slot * self._limits.verify_tokens


class _Graph:
    """One compiled graph with its inputs in place."""

    def __init__(self, compiled: ov.CompiledModel, cache: dict[str, npt.NDArray[Any]]) -> None:
        self.request = compiled.create_infer_request()
        self._inputs: dict[str, npt.NDArray[Any]] = {}
        for port in compiled.inputs:
            label = _label(port)
            array = cache.get(label)
            if array is None:
                array = self._inputs[label] = np.zeros(list(port.get_shape()), port.get_element_type().to_dtype())
            self.request.set_tensor(port, ov.Tensor(array, shared_memory=True))
        self._tokens = self._inputs["input_ids" if "input_ids" in self._inputs else HIDDEN_INPUT]
        self._mask = self._inputs[MASK][0, 0]
        self._idle = np.full_like(self._mask, CLOSED)
        self._old = self._mask.shape[1] - self._mask.shape[0]  # columns of the cache
        np.fill_diagonal(self._idle[:, self._old :], 0)  # a softmax over nothing at all is no number
        self.picked, self._positions = self._inputs.get(PICKED_INPUT), self._inputs.get("position_ids")
        outputs = [_label(port) for port in compiled.outputs[1:]]
        self._presents = {i: PAST + label.removeprefix(PRESENT) for i, label in enumerate(outputs, 1)}

    def clear(self) -> None:
        """Every lane is idle: it sees itself."""
        self._mask[:] = self._idle

    def put(self, piece: Piece, lane: int, value: npt.NDArray[Any], columns: Columns, limits: StaticLimits) -> None:
        """A piece into the lanes from `lane` on."""
        lanes = slice(lane, lane + piece.length)
        self._tokens[0, lanes] = value[piece.offset : piece.offset + piece.length]
        if self._positions is not None:
            self._positions[0, lanes] = np.arange(piece.start, piece.start + piece.length)
        old, new = columns.seen(piece.start, piece.length)
        begin = piece.slot * limits.cells
        self._mask[lanes, begin : begin + limits.cells] = np.where(old, 0, CLOSED)
        self._mask[lanes, self._old + lane : self._old + lane + piece.length] = np.where(new, 0, CLOSED)
        if self.picked is not None:
            picked = np.arange(piece.picked_from, piece.picked_from + piece.picked)
            self.picked[:] = np.resize(picked, len(self.picked)) if len(picked) else 0

    def keep(self, piece: Piece, lane: int, columns: Columns, cache: dict[str, npt.NDArray[Any]]) -> None:
        """What was computed of a piece goes into its columns."""
        places = columns.columns(piece.slot, piece.start, piece.length)
        first, last = int(places[0]), int(places[-1])
        at = slice(first, last + 1) if last - first == piece.length - 1 else places
        for i, label in self._presents.items():
            cache[label][0][:, at] = self.request.get_output_tensor(i).data[0][:, lane : lane + piece.length]
        columns.write(piece.slot, piece.start, piece.length)


def _label(port: Any) -> str:
    """The name that `to_static` gave a port: compiling may add those of what was fused with it."""
    return next(label for label in port.get_names() if label in LABELS or label.startswith((PAST, PRESENT)))
