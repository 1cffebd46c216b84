"""One binary frame: prelude, int32 section, rare JSON section, tensor. Little-endian, no pickle, one copy each way.

offset  size
     0     4  magic "SHRD"
     4     1  version
     5     1  kind: 1 step, 2 step result, 3 step failed, 4 step side
     6     1  dtype of the tensor: 0 none, 1 int32, 2 float32
     7     1  step failed: the stage; step: how many step sides the last stage needs for it
     8     8  epoch
    16     8  step number
    24     8  incarnation: of the worker addressed (step) or speaking (result, failed)
    32     4  rows
    36     4  blocks
    40     4  bytes of the JSON section (without padding)
    44     4  first dimension of the tensor
    48     4  second dimension of the tensor (0: the tensor is flat)
    52    12  zero
    64        int32 section: rows x 6, blocks · JSON section, padded to 16 · tensor
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, assert_never

import numpy as np
import numpy.typing as npt
import orjson

from engine.contract.errors import ErrorCode, FrameError
from engine.contract.ids import Epoch, Incarnation, StageIndex, StepNumber
from engine.contract.messages import ROW_COLUMNS, Frame, Rows, Step, StepFailed, StepResult, StepSide
from engine.contract.side import pack_logprobs, pack_rows, unpack_logprobs, unpack_rows

MAGIC: Final = b"SHRD"
VERSION: Final = 1
PRELUDE: Final = struct.Struct("<4sBBBBQQQIIIII12x")
FRAME_MARGIN: Final = 4096  # bytes of max_payload that a frame leaves for broker headers
_ALIGN: Final = 16
_STEP, _RESULT, _FAILED, _SIDE = 1, 2, 3, 4
_PLACE: Final = struct.Struct("<5xBxBQQ")  # kind, byte 7, epoch, step number
_DTYPES: Final[dict[int, np.dtype[Any]]] = {1: np.dtype("<i4"), 2: np.dtype("<f4")}
_CODES: Final = {dtype: code for code, dtype in _DTYPES.items()}


def encode(frame: Frame) -> bytes:
    """A frame's bytes; one copy of the tensor."""
    match frame:
        case Step():
            return _encode(_STEP, frame.sides, frame, frame.rows, frame.value, frame.extra)
        case StepSide():
            fields, masks = pack_rows(frame.rows)
            return _encode(_SIDE, 0, frame, None, masks, fields)
        case StepResult():
            extra = {"logprobs": pack_logprobs(frame.logprobs)} if frame.logprobs else {}
            return _encode(_RESULT, 0, frame, None, frame.tokens, extra)
        case StepFailed():
            extra = {"code": frame.code, "message": frame.message}
            return _encode(_FAILED, frame.stage, frame, None, None, extra)
        case _:
            assert_never(frame)


def _encode(
    kind: int,
    byte7: int,
    frame: Frame,
    rows: Rows | None,
    tensor: npt.NDArray[Any] | None,
    extra: Mapping[str, Any],
) -> bytes:
    table = b"" if rows is None else _bytes_of(rows.table)
    blocks = b"" if rows is None else _bytes_of(rows.blocks)
    json = orjson.dumps(extra) if extra else b""
    dims = (0, 0) if tensor is None else (tensor.shape[0], tensor.shape[1] if tensor.ndim == 2 else 0)
    prelude = PRELUDE.pack(
        MAGIC, VERSION, kind, 0 if tensor is None else _CODES[tensor.dtype], byte7,
        frame.epoch, frame.number, frame.incarnation,
        0 if rows is None else rows.count, len(blocks) // 4, len(json), *dims,
    )  # fmt: skip
    used = len(prelude) + len(table) + len(blocks) + len(json)
    padding = bytes(-used % _ALIGN)
    return b"".join((prelude, table, blocks, json, padding, b"" if tensor is None else _bytes_of(tensor)))


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    if not array.size:
        return memoryview(b"")
    return np.ascontiguousarray(array).data.cast("B")


@dataclass(frozen=True, slots=True)
class Peek:
    """What can be said of a frame at a glance."""

    epoch: int
    number: int
    sides: int  # of a step: step sides that belong to it
    is_side: bool


def peek(data: bytes) -> Peek | None:
    """Which step a frame is about; None when it is neither a step nor a side of one."""
    if len(data) < PRELUDE.size or data[:4] != MAGIC or data[4] != VERSION or data[5] not in (_STEP, _SIDE):
        return None
    kind, byte7, epoch, number = _PLACE.unpack_from(data)
    return Peek(epoch, number, byte7 if kind == _STEP else 0, kind == _SIDE)


def decode(data: bytes) -> Frame:
    """Read a frame without copying its arrays (they are read-only views). Raises FrameError on anything else."""
    if len(data) < PRELUDE.size or data[:4] != MAGIC:
        raise FrameError(f"{len(data)} bytes that do not start a frame")
    if data[4] != VERSION:
        raise FrameError(
            f"frame of protocol version {data[4]}, this process speaks {VERSION}: "
            "install the same shardline everywhere",
            ErrorCode.WRONG_VERSION,
        )
    _, _, kind, dtype, byte7, epoch, number, incarnation, rows, blocks, json, dim0, dim1 = PRELUDE.unpack_from(data)
    ints = 4 * (rows * ROW_COLUMNS + blocks)
    tensor_at = PRELUDE.size + ints + json
    tensor_at += -tensor_at % _ALIGN
    count = dim0 * dim1 if dim1 else dim0
    if len(data) != tensor_at + 4 * count or (dtype not in _DTYPES and (dtype or count)):
        raise FrameError(f"frame of {len(data)} bytes, its prelude says {tensor_at + 4 * count}")
    extra = _json(data[PRELUDE.size + ints : PRELUDE.size + ints + json])
    place = (Epoch(epoch), StepNumber(number), Incarnation(incarnation))
    tensor = np.frombuffer(data, _DTYPES.get(dtype, np.dtype("<i4")), count, tensor_at)
    if dim1:
        tensor = tensor.reshape(dim0, dim1)
    return _frame(kind, place, rows=_rows(data, rows, blocks), tensor=tensor, extra=extra, byte7=byte7)


def _frame(
    kind: int,
    place: tuple[Epoch, StepNumber, Incarnation],
    *,
    rows: Rows,
    tensor: npt.NDArray[Any],
    extra: dict[str, Any],
    byte7: int,
) -> Frame:
    epoch, number, incarnation = place
    if kind == _STEP:
        return Step(
            epoch=epoch, number=number, incarnation=incarnation, rows=rows, value=tensor, extra=extra, sides=byte7
        )
    if kind == _SIDE and tensor.dtype == np.int32:
        masks = tensor if tensor.ndim == 2 else tensor.reshape(0, 0)
        return StepSide(epoch=epoch, number=number, incarnation=incarnation, rows=unpack_rows(extra, masks))
    if kind == _RESULT and tensor.dtype == np.int32:
        logprobs = unpack_logprobs(extra.get("logprobs", ()))
        return StepResult(epoch=epoch, number=number, incarnation=incarnation, tokens=tensor, logprobs=logprobs)
    if kind == _FAILED:
        code, message = _failure(extra)
        return StepFailed(
            epoch=epoch,
            number=number,
            incarnation=incarnation,
            stage=StageIndex(byte7),
            code=code,
            message=message,
        )
    raise FrameError(f"frame of unknown kind {kind}")


def _rows(data: bytes, rows: int, blocks: int) -> Rows:
    ints = np.frombuffer(data, np.dtype("<i4"), rows * ROW_COLUMNS + blocks, PRELUDE.size)
    return Rows(ints[: rows * ROW_COLUMNS].reshape(rows, ROW_COLUMNS), ints[rows * ROW_COLUMNS :])


def _json(data: bytes) -> dict[str, Any]:
    if not data:
        return {}
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise FrameError(f"JSON section of a frame: {error}") from error
    if not isinstance(found, dict):
        raise FrameError("JSON section of a frame is not an object")
    return found  # type: ignore[reportUnknownVariableType]


def _failure(extra: dict[str, Any]) -> tuple[ErrorCode, str]:
    try:
        return ErrorCode(extra["code"]), str(extra["message"])
    except (KeyError, ValueError) as error:
        raise FrameError(f"failure frame without a known code: {error}") from error


def step_bytes(*, rows: int, blocks: int, tokens: int, hidden: int) -> int:
    """Size of the largest frame of such a step between two stages, in bytes (tensor float32)."""
    return PRELUDE.size + 4 * (rows * ROW_COLUMNS + blocks) + _ALIGN + 4 * tokens * max(hidden, 1)
