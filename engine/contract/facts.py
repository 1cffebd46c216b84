"""What can be known of a broker and of a device; `shardline doctor` judges it."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker as one process sees it."""

    url: str
    version: str
    jetstream: bool
    max_payload: int  # bytes
    rtt_ms: float  # median, there and back
    clock_offset: float | None  # seconds, the broker's clock less ours; None: it does not tell
    tls: bool = False
    auth: bool = False
    streams: int = 0
    stored: int = 0  # bytes in its streams on disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that OpenVINO finds."""

    name: str  # as --device takes it
    full_name: str
    plugin: str  # its version
    capabilities: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict[str, str])  # drivers, memory, precisions
