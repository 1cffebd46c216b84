"""Keep this process on some cores; must happen before OpenVINO starts its threads."""

import psutil

from engine.contract.errors import UsageError


def pin_to(cores: tuple[int, ...]) -> None:
    """Raises UsageError for a core that is not there, or a system that cannot do it."""
    process = psutil.Process()
    if not hasattr(process, "cpu_affinity"):
        raise UsageError("--cores: this system cannot keep a process on some cores")
    there = process.cpu_affinity() or []
    missing = sorted(set(cores) - set(there))
    if missing:
        raise UsageError(f"--cores: no core {missing[0]} here, only {', '.join(map(str, there))}")
    process.cpu_affinity(list(cores))
