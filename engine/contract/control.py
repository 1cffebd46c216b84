"""Rare messages: opening an epoch, heartbeats. JSON on the wire, so that any NATS client can read them."""

from dataclasses import asdict, dataclass, field
from typing import Literal, TypeVar

import orjson

from engine.contract.errors import FrameError
from engine.contract.figures import Answers, Histogram, Link, OpenRequest
from engine.contract.reading import read

PROTOCOL_VERSION = 1
HEARTBEAT_SECONDS = 1.0
SUSPECT_SECONDS = 3.5  # three heartbeats missed
MAIN_PIPELINE = "main"  # the name of a pipeline that was given none

Profile = Literal["exact", "fast"]
KvPrecision = Literal["f32", "f16", "u8"]
WorkerState = Literal["loading", "ready", "serving", "draining"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Decoder to worker: adopt this epoch, forget everything before it, send results on to these places."""

    epoch: int
    decoder: str
    done: str  # subject of step results and failures
    next_subject: str  # "" for the last stage
    next_incarnation: int  # 0 for the last stage
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A worker's answer to Open; `code` is "" when it agreed."""

    epoch: int  # the worker's epoch after handling the message
    incarnation: int
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageHeartbeat:
    """What a worker says of itself every second."""

    stage: int
    stages: int
    incarnation: int
    state: WorkerState
    epoch: int
    model: str  # slug
    split: str  # digest that all shards of one split share
    protocol: int
    profile: Profile
    runner: str
    device: str
    host: str
    pid: int
    # capabilities
    blocks: int
    block_size: int  # tokens; 0 when the runner keeps no blocks
    slots: int  # 0 when the runner keeps no slots
    min_row_tokens: int
    max_step_tokens: int  # of all rows of a step together; 0: no limit
    context_length: int
    # load
    waiting: int  # steps
    oldest_ms: float
    busy_share: float  # of the last window, 0 to 1
    step_ms_p50: float
    step_ms_p95: float
    steps: int
    refused: int
    memory_mb: float
    window: int = 0  # tokens of a sequence that its slot keeps, once there are more; 0: all
    kv_precision: str = ""  # of the cache; "" from a worker that does not say
    dynamic_quantization: bool = True  # of activations, where the CPU has instructions for it
    threads: int = 0  # of the CPU that it computes with; 0: as many as it likes
    standby: bool = False  # serves only while no other worker of its stage does
    yields: str = ""  # why it would rather not serve now: another worker of its stage takes over if there is one
    pipeline: str = MAIN_PIPELINE
    equalities: dict[str, bool] = field(default_factory=dict[str, bool])
    numerics: str = ""  # of two workers of a stage with the same word, each computes what the other would
    # since start
    busy_seconds: float = 0.0  # computing
    step_seconds: Histogram = field(default_factory=Histogram)
    refusals: dict[str, int] = field(default_factory=dict[str, int])  # frames not computed, by code
    link: Link = field(default_factory=Link)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How much is drafted, and why."""

    checked: int = 0  # drafts compared with the target's tokens, since start
    accepted: int = 0  # of those
    window: float = 0.0  # drafts per window, lately
    gain: float = 1.0  # expected speed relative to no drafts, lately
    measured_gain: float = 0.0  # speed with drafts relative to without, at the present load; 0.0: not yet tried
    step_ms: float = 0.0  # of a step with one row, whatever is in it, on the slowest stage
    step_token_ms: float = 0.0  # of each token in it
    draft_token_ms: float = 0.0  # of each drafted token, as far as the pipe waits for it
    failures: int = 0  # times the draft model did not answer
    windows: dict[str, int] = field(default_factory=dict[str, int])  # decided since start, by source or why not
    window_tokens: Histogram = field(default_factory=Histogram)  # drafts of each


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    """How much need not be computed, because another sequence began the same way."""

    lookups: int = 0  # sequences admitted since start, replays included
    hits: int = 0  # of those, with a beginning that was there
    saved_tokens: int = 0
    cached_blocks: int = 0  # now, in nobody's use
    cached_slots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How full the pipe is kept, and why."""

    depth: int = 0  # steps in flight at most
    step_ms: float = 0.0  # predicted for the present answers' next step, on the slowest stage
    loop_ms: float = 0.0  # predicted for it, from publish to result, nothing in its way
    budget_ms: float = 0.0  # of a step with chunks of prompts beside them; 0: nobody reads an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderHeartbeat:
    """What a decoder says of itself every second."""

    decoder: str
    state: Literal["waiting", "opening", "serving", "draining"]
    waits_for: str  # "" when serving
    epoch: int
    model: str
    host: str
    pid: int
    waiting: int  # requests admitted to the process, not yet running
    running: int  # requests
    blocks: int
    free_blocks: int  # in nobody's use, those of the prefix cache included
    steps: int
    steps_in_flight: int
    replays: int  # epochs raised after the first
    tokens: int  # generated since start
    tokens_per_second: float  # over the last window
    speculation: Speculation
    prefix_cache: PrefixCache = field(default_factory=PrefixCache)
    scheduling: Scheduling = field(default_factory=Scheduling)
    pipeline: str = MAIN_PIPELINE
    answers: Answers = field(default_factory=Answers)
    active_seconds: float = 0.0  # since start, with requests to answer: a stage that does not compute then is a bubble
    oldest_waiting_ms: float = 0.0
    preemptions: int = 0
    resumed: int = 0  # answers that another decoder began
    open_requests: tuple[OpenRequest, ...] = ()  # the oldest
    link: Link = field(default_factory=Link)


ControlMessage = Open | Opened | StageHeartbeat | DecoderHeartbeat
M = TypeVar("M", Open, Opened, StageHeartbeat, DecoderHeartbeat)


def to_json(message: ControlMessage) -> bytes:
    """A message as one JSON object."""
    return orjson.dumps(asdict(message))


def from_json(kind: type[M], data: bytes) -> M:
    """Read a message of that kind; unknown fields are passed over. Raises FrameError naming what is wrong."""
    try:
        return read(kind, orjson.loads(data))
    except (orjson.JSONDecodeError, TypeError) as error:
        raise FrameError(f"not a {kind.__name__}: {error}") from error
