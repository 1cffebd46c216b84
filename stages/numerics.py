"""How a worker computes, in one word: two workers of a stage that say the same give the same bits.

What is known to decide (device, OpenVINO, settings) and what the self-test computed go into it: processors of one name
may have different instructions. Different words may still give the same bits.
"""

import hashlib
import logging
from typing import Final

import numpy as np

from engine.contract.facts import Device
from stages.settings import RunnerOptions, compile_properties

DIGITS: Final = 12
_DEVICE: Final = ("DEVICE_ARCHITECTURE", "GPU_DRIVER_VERSION", "NPU_DRIVER_VERSION")
_INDIFFERENT: Final = ("CACHE_DIR", "INFERENCE_NUM_THREADS", "ENABLE_CPU_PINNING")  # no bit depends on these
log = logging.getLogger("shardline.stage")


def describe(device: Device, options: RunnerOptions) -> str:
    """All that is known to decide, for people."""
    compiled = {key: value for key, value in compile_properties(options).items() if key not in _INDIFFERENT}
    return ", ".join(
        (
            f"{device.full_name or device.name} {' '.join(sorted(device.capabilities))}",
            *(f"{key} {device.properties[key]}" for key in _DEVICE if key in device.properties),
            f"OpenVINO {device.plugin}",
            f"numpy {np.__version__}",
            f"{options.kind} {options.profile}",
            *(f"{key} {value}" for key, value in sorted(compiled.items())),
        )
    )


def fingerprint(described: str, computed: str) -> str:
    """Of a worker; `computed`: digest of what the self-test computed."""
    word = hashlib.sha256(f"{described}\n{computed}".encode()).hexdigest()[:DIGITS]
    log.info("numerics %s: %s; self-test %s", word, described, computed[:DIGITS] or "left out")
    return word
