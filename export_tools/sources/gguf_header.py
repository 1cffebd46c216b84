"""Metadata of a GGUF file: a few numbers and names, read from its header (GGUF specification, version 3)."""

import struct
from pathlib import Path
from typing import Any, BinaryIO, Final

from engine.contract.errors import UsageError

_SCALARS: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING: Final = 8
_ARRAY: Final = 9
_MAX_STRING: Final = 1 << 24


def read_header(path: Path) -> dict[str, Any]:
    """Key-value metadata; arrays only as far as they hold scalars. Raises UsageError when it is not GGUF."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise UsageError(f"{path} is not a GGUF file")
            version, _, count = struct.unpack("<IQQ", file.read(20))
            if version not in (2, 3):
                raise UsageError(f"{path} is GGUF version {version}; 2 and 3 can be read")
            return dict(_pair(file) for _ in range(count))
    except (struct.error, OSError, ValueError, KeyError) as error:
        raise UsageError(f"{path} cannot be read as GGUF: {error}") from error


def _pair(file: BinaryIO) -> tuple[str, Any]:
    key = _string(file)
    return key, _value(file, _number(file, "<I"))


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        inner, length = _number(file, "<I"), _number(file, "<Q")
        return [_value(file, inner) for _ in range(length)]
    return _number(file, _SCALARS[kind])


def _number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def _string(file: BinaryIO) -> str:
    length = _number(file, "<Q")
    if length > _MAX_STRING:
        raise ValueError(f"a string of {length} bytes")
    return file.read(length).decode("utf-8", errors="replace")
