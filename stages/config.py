"""What a worker process is told at start."""

import re
from dataclasses import dataclass
from pathlib import Path

from engine.contract.errors import UsageError
from engine.contract.sizes import parse_size
from stages.memory import AUTO, KvShare
from stages.owner import YieldPolicy
from stages.settings import RunnerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConfig:
    """Options of `stage-run`; defaults live in its command line."""

    index: int
    shards: Path
    nats: str
    deployment: str
    runner: RunnerOptions
    cores: tuple[int, ...]  # empty: all
    pipeline: str
    standby: bool
    grace: float  # seconds to hand over and to finish accepted steps after SIGTERM
    giving_way: YieldPolicy | None  # None: never


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Options of `draft-run`; defaults live in its command line."""

    draft: Path
    shards: Path
    nats: str
    deployment: str
    device: str
    threads: int  # 0: one per core in use
    cores: tuple[int, ...]  # empty: all
    json_logs: bool


def parse_kv_memory(text: str) -> int | KvShare:
    """Bytes, or a share of free memory, from e.g. "auto", "25%" or "2GiB". Raises UsageError."""
    if text.strip() == "auto":
        return AUTO
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip()):
        if not 0 < float(found[1]) <= 100:
            raise UsageError(f"{text!r} is not a share of memory: write it from 1% to 100%")
        return KvShare(float(found[1]) / 100)
    return parse_size(text)


def parse_cores(text: str) -> tuple[int, ...]:
    """Core numbers from e.g. "0,1" or "0-3"; empty for "". Raises UsageError."""
    cores: set[int] = set()
    for part in filter(None, text.replace(" ", "").split(",")):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if found is None:
            raise UsageError(f"{text!r} does not name cores: write them like 0,1 or 0-3")
        cores.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(cores))
