"""What the profiles mean to OpenVINO (docs/decisions/0005)."""

from pathlib import Path
from typing import Final

from engine.contract.control import Profile

KV_BYTES: Final[dict[Profile, int]] = {"exact": 4, "fast": 2}
_EXACT: Final = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
_FAST: Final = {"KV_CACHE_PRECISION": "f16"}
MIN_ROW_TOKENS: Final[dict[Profile, int]] = {"exact": 2, "fast": 1}
"""Rows of one token take another attention kernel than longer ones, and a head applied to one position another matrix
kernel than to several: with at least two of each, results do not depend on how many there are."""


def compile_properties(profile: Profile, *, threads: int, cache: Path | None) -> dict[str, str]:
    """Properties for `compile_model`."""
    properties = dict(_EXACT if profile == "exact" else _FAST)
    properties["PERFORMANCE_HINT"] = "LATENCY"
    properties["NUM_STREAMS"] = "1"
    if threads:
        properties["INFERENCE_NUM_THREADS"] = str(threads)
    if cache is not None:
        properties["CACHE_DIR"] = str(cache)
    return properties
