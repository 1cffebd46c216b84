# pyright: basic
"""The paged runner: KV in blocks, any mix of prefill chunks, decodes and verifies in one inference (D3)."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov

from engine.contract.errors import DeviceError
from engine.contract.messages import Rows
from export_tools.passes.head import PICKED_INPUT
from stages.runner import Capabilities
from stages.shard_io import RowLimits, check_rows

if TYPE_CHECKING:
    from stages.loader import Shard

_CACHES: Final = ("key_cache.", "value_cache.")


class PagedRunner:
    """See Runner. The block pool is made once; a rejected draft costs nothing, the next row starts earlier."""

    def __init__(self, compiled: ov.CompiledModel, shard: "Shard", *, kv_memory: int, min_row_tokens: int) -> None:
        self._request = compiled.create_infer_request()
        self._shard = shard
        self._min_picked = min_row_tokens if shard.last else 0
        self._value_name = "input_ids" if shard.first else "inputs_embeds"
        self._inputs = {port.get_any_name() for port in compiled.inputs}
        caches = [port for port in compiled.inputs if port.get_any_name().startswith(_CACHES)]
        shapes = [[dim.get_length() for dim in list(port.get_partial_shape())[1:]] for port in caches]
        types = [port.get_element_type() for port in caches]
        block_bytes = sum(int(np.prod(s)) * t.size for s, t in zip(shapes, types, strict=True))
        blocks = kv_memory // block_bytes
        if blocks < 2:
            raise DeviceError(f"--kv-memory holds {blocks} blocks of {block_bytes} bytes; at least 2 are needed")
        self._pool = [
            ov.Tensor(np.zeros([blocks, *shape], kind.to_dtype())) for shape, kind in zip(shapes, types, strict=True)
        ]
        for port, cache in zip(caches, self._pool, strict=True):
            self._request.set_tensor(port, cache)
        block_size = shapes[0][1]  # [blocks, kv heads, tokens, head size]
        manifest = shard.manifest
        self._limits = RowLimits(
            context_length=manifest.context_length,
            blocks=blocks,
            block_size=block_size,
            slots=0,
            hidden_size=0 if shard.first else manifest.hidden_size,
            vocabulary=manifest.vocabulary,
        )
        self.capabilities = Capabilities(
            kind="paged",
            blocks=blocks,
            block_size=block_size,
            slots=0,
            min_row_tokens=min_row_tokens,
            context_length=manifest.context_length,
        )

    def infer(self, rows: Rows, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """See Runner."""
        check_rows(rows, value, self._limits)
        picked = rows.picked()
        wanted = len(picked)
        if self._shard.last and 0 < wanted < self._min_picked:
            picked = np.resize(picked, self._min_picked)  # repeats: the head's kernel depends on how many there are
        inputs = paged_inputs(rows)
        inputs[self._value_name] = value.astype(np.int64) if self._shard.first else value
        if self._shard.last:
            inputs[PICKED_INPUT] = picked
        for name, array in inputs.items():
            if name in self._inputs:
                self._request.set_tensor(name, ov.Tensor(np.ascontiguousarray(array)))
        try:
            self._request.infer()
        except RuntimeError as error:
            raise DeviceError(f"inference failed: {str(error).strip().splitlines()[-1]}") from error
        out = self._request.get_output_tensor(0).data
        return out.reshape(-1, out.shape[-1])[: wanted if self._shard.last else rows.tokens]

    def reset(self) -> None:
        """See Runner. Nothing to do: what a block held is overwritten before it is read."""

    def close(self) -> None:
        """See Runner."""
        del self._request, self._pool


def paged_inputs(rows: Rows) -> dict[str, npt.NDArray[Any]]:
    """The paged model's description of a step, without Python loops over rows or tokens."""
    starts, lengths = rows.starts, rows.lengths
    begins = np.zeros(rows.count + 1, np.int32)
    np.cumsum(lengths, out=begins[1:])
    block_begins = np.zeros(rows.count + 1, np.int32)
    np.cumsum(rows.block_counts, out=block_begins[1:])
    within = np.arange(int(begins[-1]), dtype=np.int64) - np.repeat(begins[:-1].astype(np.int64), lengths)
    return {
        "position_ids": within + np.repeat(starts.astype(np.int64), lengths),
        "past_lens": starts,
        "subsequence_begins": begins,
        "block_indices": rows.blocks,
        "block_indices_begins": block_begins,
        "max_context_len": np.array((starts + lengths).max(), np.int32),
    }
