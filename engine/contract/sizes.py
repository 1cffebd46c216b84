"""Sizes as people write them."""

import re
from typing import Final

from engine.contract.errors import UsageError

_UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_size(text: str) -> int:
    """Bytes from e.g. "512MiB", "2GiB" or "1000000". Raises UsageError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)?", text.strip())
    if found is None:
        raise UsageError(f"{text!r} is not a size: write it like 512MiB or 2GiB")
    return int(float(found[1]) * _UNITS[found[2] or ""])


def show_size(count: float) -> str:
    """Bytes for people, e.g. "1.5 GiB"."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"
