"""Figures that heartbeats carry: counted since a process started, so that who misses a heartbeat misses nothing."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How many observations were at most each bound and above the one before; the last count: above all of them."""

    bounds: tuple[float, ...] = ()  # rising
    counts: tuple[int, ...] = ()  # one more than bounds
    total: float = 0.0  # sum of all observations


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A process's connection to the broker."""

    sent_bytes: int = 0  # payloads
    received_bytes: int = 0
    sent_messages: int = 0
    received_messages: int = 0
    reconnects: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What became of requests, and how long they took."""

    outcomes: dict[str, int] = field(default_factory=dict[str, int])  # by finish reason
    errors: dict[str, int] = field(default_factory=dict[str, int])  # refused or failed, by code
    prompt_tokens: int = 0  # of requests that have ended
    queued_seconds: Histogram = field(default_factory=Histogram)  # arrival to admission
    first_token_seconds: Histogram = field(default_factory=Histogram)  # arrival to first token
    token_seconds: Histogram = field(default_factory=Histogram)  # from one token of an answer to the next
    request_seconds: Histogram = field(default_factory=Histogram)  # arrival to end


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A request that is being answered, or waits for it."""

    id: str  # its beginning
    state: str  # "waiting", "prompt" (being read) or "answer"
    tokens: int  # of the answer so far
    prompt_tokens: int
    seconds: float  # since its arrival
