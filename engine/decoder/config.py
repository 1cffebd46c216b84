"""What a decoder process is told at start."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Options of `decoder-run`; defaults live in its command line."""

    shards: Path
    nats: str
    deployment: str
    pipeline: str
    max_running: int  # sequences at once, when the stages keep no slots
    max_waiting: int  # requests held in this process besides the running ones
    prefill_tokens: int  # per step, decode rows counted
    steps_in_flight: int  # 0: as measured, one per stage at least
    smoothness: float  # times: how much longer prompts may make steps while somebody reads an answer
    default_max_tokens: int
    max_deliveries: int  # of a durable prompt, before it becomes a dead letter
    step_timeout: float  # seconds: least time before a step counts as lost
    draft: str  # "none", "lookup", "remote", or the folder of a draft model
    draft_tokens: int | None  # per window; None: as many as pay
    grace: float  # seconds to finish accepted requests after SIGTERM
