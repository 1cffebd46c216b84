"""OpenVINO raises RuntimeError with many lines; a worker says one."""

from collections.abc import Generator
from contextlib import contextmanager

from engine.contract.errors import DeviceError


@contextmanager
def device_errors(doing: str) -> Generator[None]:
    """Turn what native code raises into a DeviceError `doing: reason`, one line."""
    try:
        yield
    except MemoryError as error:
        raise DeviceError(f"{doing}: out of memory; use more stages, or less --kv-memory") from error
    except (RuntimeError, OSError, ValueError) as error:
        raise DeviceError(f"{doing}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The telling line of a native error: its last that is neither a place in the source nor empty."""
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if line and not line.startswith(("Exception from", "Check '"))]
    text = (telling or lines or [type(error).__name__])[-1]
    if "bad_alloc" in text or "allocate" in text.lower():
        return f"out of memory ({text}); use more stages, or less --kv-memory"
    return text
