"""How much memory there is for a KV cache, and how much of it one worker takes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import psutil

LEAST_RESERVE: Final = 1 << 30  # bytes
RESERVED_SHARE: Final = 0.1  # of all memory
MOST_SEQUENCES: Final = 64  # that decoder-run keeps in the pipeline at once unless told otherwise
CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class KvShare:
    """Part of the memory that is free once the shard is loaded, the system's reserve left out."""

    share: float  # above 0, at most 1

    def __str__(self) -> str:
        return "auto" if self == AUTO else f"{self.share:.0%}"


AUTO: Final = KvShare(0.5)
"""Half. A cache takes real memory only as it is used, so two workers that start on one machine see the same free
memory, and both halves are there. With more workers each needs a share of its own, 100 % together at most."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of this machine, or of the container this process lives in."""

    total: int
    free: int  # without swapping

    @property
    def spare(self) -> int:
        """Free, less what stays reserved for the system and for other processes."""
        return max(self.free - max(LEAST_RESERVE, int(self.total * RESERVED_SHARE)), 0)


def pool_bytes(wanted: int | KvShare, memory: Memory, *, token_bytes: float, context_length: int) -> int:
    """Size of a KV cache; a share is no more than as many full contexts as a decoder runs at once."""
    match wanted:
        case KvShare(share):
            return min(int(memory.spare * share), int(token_bytes * context_length * MOST_SEQUENCES))
        case size:
            return size


def measure_memory() -> Memory:
    """Of this moment. A limit of a control group (version 2: containers, systemd) counts as the machine's end."""
    machine = psutil.virtual_memory()
    return within_limits(Memory(machine.total, machine.available), OWN_CGROUP, CGROUPS)


def within_limits(machine: Memory, own: Path, root: Path) -> Memory:
    """The machine's memory, or less where a control group above the process in file `own` has a limit."""
    total, free = machine.total, machine.free
    for group in _groups(own, root):
        try:
            limit = int((group / "memory.max").read_text())  # or "max"
            used = int((group / "memory.current").read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        total = min(total, limit)
        free = min(free, limit - used + int(stat.get("inactive_file", 0)))
    return Memory(total, max(free, 0))


def _groups(own: Path, root: Path) -> Iterator[Path]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("0::/"):
            path = PurePosixPath(line.removeprefix("0::/"))
            yield from (root / part for part in (path, *path.parents))
