"""What a gateway process is told at start."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Options of `gateway-run`; defaults live in its command line."""

    nats: str
    deployment: str
    models: tuple[str, ...]  # known although not heard; others are found by their heartbeats
    host: str
    port: int  # 0: any that is free
    api_keys: Path | None
    max_open: int  # requests at once
    max_body: int  # bytes
    patience: float  # seconds that a running answer waits for a pipeline that does not serve
    grace: float  # seconds to finish answers after SIGTERM
    json_logs: bool
