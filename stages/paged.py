# pyright: basic
"""Runs a shard with paged attention: a fixed pool of blocks, any mix of prefill chunks, decodes and verify rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov

from engine.contract.copies import SlotCopy
from engine.contract.errors import DeviceError, ErrorCode, StepError
from engine.contract.messages import Rows
from stages.checks import RowChecks, ShardShape
from stages.openvino_errors import device_errors
from stages.runner import Capabilities
from stages.settings import MIB

CACHES: Final = ("key_cache", "value_cache")
BLOCK_AXIS: Final = 2  # of a cache on CPU: [blocks, KV heads, tokens of a block, head size and scales]
LEAST_BLOCKS: Final = 8  # what the self-test needs
ALIGNMENT: Final = 64  # bytes, a cache line
_DTYPES: Final[dict[str, Any]] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": np.uint16,  # numpy has none
    "u8": np.uint8,
}


class PagedRunner:
    """See Runner. `compiled`: a shard after `to_paged`, and on the last stage `pick_before_head` on axis 0."""

    def __init__(
        self,
        compiled: ov.CompiledModel,
        shape: ShardShape,
        *,
        kv_bytes: int,
        context_length: int,
        min_row_tokens: int,
        max_step_tokens: int,
    ) -> None:
        self.compiled, self._shape = compiled, shape
        ports = {port.get_any_name(): port for port in compiled.inputs}
        caches = {name: port for name, port in ports.items() if name.startswith(CACHES)}
        self._inputs = {name: port for name, port in ports.items() if name not in caches}
        block = block_of(compiled)
        blocks = kv_bytes // block.bytes
        if blocks < LEAST_BLOCKS:
            needed = -(-LEAST_BLOCKS * block.bytes // MIB)
            raise DeviceError(f"--kv-memory of {kv_bytes // MIB} MiB is too small: give it {needed} MiB or more")
        with device_errors("cannot make the KV cache"):
            self._request = compiled.create_infer_request()
            self._pool = {name: _pool(port, blocks) for name, port in caches.items()}
            for name, tensor in self._pool.items():
                self._request.set_tensor(name, tensor)
        self.capabilities: Final = Capabilities(
            kind="paged",
            blocks=blocks,
            block_size=block.tokens,
            slots=0,
            min_row_tokens=min_row_tokens,
            max_step_tokens=max_step_tokens,
            context_length=context_length,
        )
        self._checks = RowChecks(self.capabilities, shape)

    def infer(self, rows: Rows, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """See Runner."""
        self._checks.check(rows, value)
        inputs = step_inputs(rows, self.capabilities.block_size)
        if self._shape.first:
            inputs["input_ids"] = value.astype(np.int64)
        else:
            inputs["inputs_embeds"] = value
        wanted = rows.tokens
        if self._shape.last:
            picked = rows.picked()
            wanted, least = len(picked), self.capabilities.min_row_tokens
            if 0 < wanted < least:  # as with rows, a single position takes another kernel
                picked = np.resize(picked, least)
            inputs["picked"] = picked
        with device_errors("the device failed"):
            for name, port in self._inputs.items():  # by port: half the time of by name
                self._request.set_tensor(port, ov.Tensor(inputs[name]))
            self._request.infer()
            out = self._request.get_output_tensor(0).data
        return out.reshape(len(out), out.shape[-1])[:wanted]  # the pass leaves [tokens, 1, n]

    def copy_slots(self, copies: Sequence[SlotCopy]) -> None:
        """See Runner. Refused: what sequences share here are blocks."""
        raise StepError(ErrorCode.INVALID_ROWS, f"{len(copies)} copies between slots, but a paged shard keeps none")

    def reset(self) -> None:
        """See Runner. Nothing to forget: a row's start and blocks say what of the pool counts."""

    def close(self) -> None:
        """See Runner."""
        self._pool.clear()
        del self._request, self.compiled


def step_inputs(rows: Rows, block_size: int) -> dict[str, npt.NDArray[Any]]:
    """The paged graph's inputs for checked rows, without its value. No loop over tokens or rows."""
    starts, lengths, _, _, _, counts = rows.table.T
    ends = starts + lengths
    used = (ends + (block_size - 1)) // block_size
    bounds = np.zeros((2, rows.count + 1), np.int32)
    np.add.accumulate(lengths, out=bounds[0, 1:])
    np.add.accumulate(used, out=bounds[1, 1:])
    tokens = int(bounds[0, -1])
    blocks = rows.blocks
    if len(blocks) != bounds[1, -1]:  # blocks handed out ahead of need
        within = np.arange(len(blocks)) - np.repeat(np.cumsum(counts) - counts, counts)
        blocks = blocks[within < np.repeat(used, counts)]
    offsets = (starts - bounds[0, :-1]).astype(np.int64)
    return {
        "position_ids": np.arange(tokens, dtype=np.int64) + offsets.repeat(lengths),
        "past_lens": np.ascontiguousarray(starts),
        "subsequence_begins": bounds[0],
        "block_indices": blocks,
        "block_indices_begins": bounds[1],
        "max_context_len": np.array(np.maximum.reduce(ends), np.int32),
    }


@dataclass(frozen=True, slots=True)
class Block:
    """One block of every cache of a shard together."""

    tokens: int
    bytes: int


def block_of(compiled: ov.CompiledModel) -> Block:
    """The blocks that a compiled shard wants. Raises DeviceError for a kind of cache we do not know."""
    caches = [port for port in compiled.inputs if port.get_any_name().startswith(CACHES)]
    # keys that are scaled by channel carry the scales as further tokens: the values say how many there really are
    tokens = min(_block_shape(port)[BLOCK_AXIS - 1] for port in caches)
    return Block(tokens, sum(_block_bytes(port) for port in caches))


def _block_shape(port: Any) -> list[int]:
    """Shape of one block of a cache: [KV heads, tokens, head size]."""
    return [dimension.get_length() for dimension in list(port.get_partial_shape())[1:]]


def _block_bytes(port: Any) -> int:
    kind = port.get_element_type()
    if kind.get_type_name() not in _DTYPES:
        raise DeviceError(f"the device keeps its KV cache as {kind.get_type_name()}: use --runner stateful")
    return int(np.prod(_block_shape(port))) * kind.size


def _pool(port: Any, blocks: int) -> ov.Tensor:
    """Zeros that the system hands out page by page when they are first touched."""
    kind, shape = port.get_element_type(), [blocks, *_block_shape(port)]
    size = blocks * _block_bytes(port)
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    array = raw[offset : offset + size].view(_DTYPES[kind.get_type_name()]).reshape(shape)
    if array.dtype == np.uint16:
        return ov.Tensor(array, ov.Shape(shape), kind)
    return ov.Tensor(array, shared_memory=True)
