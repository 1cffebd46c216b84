"""What a worker process is told at start."""

from dataclasses import dataclass
from pathlib import Path

from engine.contract.control import Profile
from stages.runner import RunnerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConfig:
    """Options of `stage-run`; defaults live in its command line."""

    index: int
    shards: Path
    nats: str
    deployment: str
    runner: RunnerKind
    profile: Profile
    device: str
    threads: int  # 0: as many as OpenVINO likes
    cores: tuple[int, ...]  # empty: any
    kv_memory: int  # bytes of the block pool
    slots: int  # sequences, for runners that keep a state per sequence
    cache: Path | None  # of compiled models
    grace: float  # seconds to finish accepted steps after SIGTERM
    json_logs: bool
