"""Heartbeats as samples for Prometheus: one table per kind of process, and pure functions over them.

The same functions serve a process's own endpoint and monitor-run, so a figure has one name wherever it is scraped.
Labels are bounded: deployment and model, stage, process, and words of the contract. No ids of requests.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, get_args

from engine.contract.control import DecoderHeartbeat, StageHeartbeat, WorkerState
from engine.contract.errors import ErrorCode
from engine.contract.figures import Histogram, Link
from engine.contract.prompt import FinishReason
from engine.monitoring.depth import Depths
from engine.monitoring.health import outage

Kind = Literal["counter", "gauge", "histogram"]
Value = float | Histogram | Mapping[str, float]
H = TypeVar("H")
STAGE_STATES: Final[tuple[str, ...]] = get_args(WorkerState)
DECODER_STATES: Final = ("waiting", "opening", "serving", "draining")
OUTCOMES: Final[tuple[str, ...]] = get_args(FinishReason)
_CODES: Final = frozenset(map(str, ErrorCode)) | {"inbox_full"}
OTHER: Final = "other"  # a code of a newer version


@dataclass(frozen=True, slots=True)
class Metric:
    """What Prometheus knows a figure by."""

    name: str
    help: str
    kind: Kind
    by: str = ""  # the label that tells values of one figure apart, where it has several


@dataclass(frozen=True, slots=True)
class Sample:
    """A figure of one process."""

    metric: Metric
    labels: Mapping[str, str]
    value: float | Histogram


Row = tuple[Metric, Callable[[H], Value]]


def _gauge(name: str, text: str, of: Callable[[H], Value], by: str = "") -> Row[H]:
    return Metric(f"shardline_{name}", text, "gauge", by), of


def _counter(name: str, text: str, of: Callable[[H], Value], by: str = "") -> Row[H]:
    return Metric(f"shardline_{name}_total", text, "counter", by), of


def _histogram(name: str, text: str, of: Callable[[H], Histogram]) -> Row[H]:
    return Metric(f"shardline_{name}_seconds", text, "histogram"), of


def _one_of(all_of: Iterable[str], here: str) -> Mapping[str, float]:
    return {name: float(name == here) for name in all_of}


def _by_code(counts: Mapping[str, int]) -> Mapping[str, float]:
    known = {code: float(count) for code, count in counts.items() if code in _CODES}
    rest = sum(counts.values()) - sum(known.values())
    return known | ({OTHER: rest} if rest else {})


def _outcomes(counts: Mapping[str, int]) -> Mapping[str, float]:
    return {name: float(counts.get(name, 0)) for name in OUTCOMES}


def _link(who: str, of: Callable[[H], Link]) -> tuple[Row[H], ...]:
    return (
        _counter(f"{who}_sent_bytes", "Bytes sent to the broker.", lambda h: of(h).sent_bytes),
        _counter(f"{who}_received_bytes", "Bytes received from the broker.", lambda h: of(h).received_bytes),
        _counter(f"{who}_sent_messages", "Messages sent to the broker.", lambda h: of(h).sent_messages),
        _counter(f"{who}_received_messages", "Messages received from the broker.", lambda h: of(h).received_messages),
        _counter(f"{who}_reconnects", "Times the link to the broker was made anew.", lambda h: of(h).reconnects),
    )


STAGE: Final[tuple[Row[StageHeartbeat], ...]] = (
    _gauge("stage_state", "1 for the worker's state.", lambda h: _one_of(STAGE_STATES, h.state), by="state"),
    _gauge("stage_epoch", "Epoch that the worker has adopted.", lambda h: h.epoch),
    _gauge("stage_waiting_steps", "Steps that have arrived and are not computed.", lambda h: h.waiting),
    _gauge("stage_oldest_step_age_seconds", "Age of the oldest of them.", lambda h: h.oldest_ms / 1e3),
    _counter("stage_steps", "Steps computed.", lambda h: h.steps),
    _counter("stage_busy_seconds", "Time spent computing.", lambda h: h.busy_seconds),
    _histogram("stage_step", "Time to compute one step.", lambda h: h.step_seconds),
    _counter("stage_refusals", "Frames refused or dropped.", lambda h: _by_code(h.refusals), by="code"),
    _gauge("stage_kv_blocks", "Blocks of KV cache that the worker can hold.", lambda h: h.blocks),
    _gauge("stage_kv_block_tokens", "Tokens of one block.", lambda h: h.block_size),
    _gauge("stage_slots", "Sequences that the worker can hold; 0: it keeps blocks.", lambda h: h.slots),
    _gauge("stage_resident_memory_bytes", "Memory of the worker's process.", lambda h: h.memory_mb * 1e6),
    *_link("stage", lambda h: h.link),
)
DECODER: Final[tuple[Row[DecoderHeartbeat], ...]] = (
    _gauge("decoder_state", "1 for the decoder's state.", lambda h: _one_of(DECODER_STATES, h.state), by="state"),
    _gauge("decoder_epoch", "Epoch that the decoder has opened.", lambda h: h.epoch),
    _counter("replays", "Epochs raised after the first: a stage or a step was lost.", lambda h: h.replays),
    _counter("requests", "Requests ended.", lambda h: _outcomes(h.answers.outcomes), by="outcome"),
    _counter("request_errors", "Requests refused or failed.", lambda h: _by_code(h.answers.errors), by="code"),
    _gauge("requests_running", "Requests in the pipeline.", lambda h: h.running),
    _gauge("requests_waiting", "Requests that the decoder has taken and not begun.", lambda h: h.waiting),
    _gauge("oldest_waiting_request_age_seconds", "Age of the oldest of them.", lambda h: h.oldest_waiting_ms / 1e3),
    _counter("prompt_tokens", "Tokens of the prompts of ended requests.", lambda h: h.answers.prompt_tokens),
    _counter("generated_tokens", "Tokens generated.", lambda h: h.tokens),
    _histogram("request_queue", "Arrival to admission to the pipeline.", lambda h: h.answers.queued_seconds),
    _histogram("time_to_first_token", "Arrival to the first token.", lambda h: h.answers.first_token_seconds),
    _histogram("time_between_tokens", "One token to the next.", lambda h: h.answers.token_seconds),
    _histogram("request", "Arrival to the end of the answer.", lambda h: h.answers.request_seconds),
    _gauge("kv_blocks", "Blocks of KV cache that the pipeline has.", lambda h: h.blocks),
    _gauge("kv_blocks_used", "Of those, in use by sequences.", lambda h: h.blocks - h.free_blocks),
    _gauge("prefix_cache_blocks", "Blocks kept for who begins alike.", lambda h: h.prefix_cache.cached_blocks),
    _counter("prefix_cache_lookups", "Sequences admitted.", lambda h: h.prefix_cache.lookups),
    _counter("prefix_cache_hits", "Of those, with a beginning that was there.", lambda h: h.prefix_cache.hits),
    _counter("prefix_cache_saved_tokens", "Tokens not computed again.", lambda h: h.prefix_cache.saved_tokens),
    _counter("preemptions", "Sequences sent back to wait for blocks.", lambda h: h.preemptions),
    _counter("resumed_answers", "Answers that another decoder began.", lambda h: h.resumed),
    _counter("draft_tokens", "Drafts compared with the model's own tokens.", lambda h: h.speculation.checked),
    _counter("draft_tokens_accepted", "Of those, accepted.", lambda h: h.speculation.accepted),
    _counter("draft_windows", "Windows decided, by source or why none.", lambda h: h.speculation.windows, by="choice"),
    (
        Metric("shardline_draft_window_tokens", "Drafts of one window.", "histogram"),
        lambda h: h.speculation.window_tokens,
    ),
    _gauge("draft_expected_speedup_ratio", "Predicted, lately.", lambda h: h.speculation.gain),
    _gauge("draft_measured_speedup_ratio", "Measured at this load; 0: not yet.", lambda h: h.speculation.measured_gain),
    _counter("draft_failures", "Times the draft model did not answer.", lambda h: h.speculation.failures),
    _counter("steps", "Steps whose results came.", lambda h: h.steps),
    _gauge("steps_in_flight", "Steps under way.", lambda h: h.steps_in_flight),
    _gauge("steps_in_flight_limit", "Steps under way at most.", lambda h: h.scheduling.depth),
    _gauge("predicted_step_seconds", "Next step on the slowest stage.", lambda h: h.scheduling.step_ms / 1e3),
    _gauge("predicted_loop_seconds", "Next step from publish to result.", lambda h: h.scheduling.loop_ms / 1e3),
    _counter("active_seconds", "Time with requests to answer.", lambda h: h.active_seconds),
    *_link("decoder", lambda h: h.link),
)
PIPELINE: Final[tuple[Row[Depths], ...]] = (
    _gauge("pipeline_up", "1 when a prompt would be answered.", lambda d: float(not outage(d))),
    _gauge("pipeline_stages", "Stages that the model was cut into.", lambda d: len(d.stages)),
    _gauge("pipeline_stages_missing", "Of those, without a worker.", lambda d: d.stages.count(None)),
    _gauge("pipeline_spare_workers", "Workers beside those that serve.", lambda d: len(d.spares)),
)
QUEUE: Final[tuple[Row[Depths], ...]] = (
    _gauge("queue_prompts", "Durable prompts that wait.", lambda d: d.prompts.pending if d.prompts else 0),
    _gauge("queue_prompts_working", "Handed out, not answered.", lambda d: d.prompts.working if d.prompts else 0),
    _gauge("queue_prompts_redelivered", "Of those, again.", lambda d: d.prompts.redelivered if d.prompts else 0),
    _gauge("queue_oldest_prompt_age_seconds", "Age of the oldest.", lambda d: d.prompts.oldest if d.prompts else 0),
    _gauge("dead_letters", "Prompts that were given up.", lambda d: d.prompts.dead if d.prompts else 0),
)


def _samples(rows: Sequence[Row[H]], of: H, labels: Mapping[str, str]) -> list[Sample]:
    found: list[Sample] = []
    for metric, figure in rows:
        value = figure(of)
        if isinstance(value, Mapping):
            found += [Sample(metric, {**labels, metric.by: name}, one) for name, one in value.items()]
        else:
            found.append(Sample(metric, labels, value))
    return found


def stage_samples(deployment: str, heartbeat: StageHeartbeat) -> list[Sample]:
    """All figures of a worker."""
    labels = _labels(deployment, heartbeat) | {"stage": str(heartbeat.stage)}
    return [_stage_info(labels, heartbeat), *_samples(STAGE, heartbeat, labels)]


def decoder_samples(deployment: str, heartbeat: DecoderHeartbeat) -> list[Sample]:
    """All figures of a decoder."""
    return _samples(DECODER, heartbeat, _labels(deployment, heartbeat))


def pipeline_samples(deployment: str, model: str, depths: Depths) -> list[Sample]:
    """What only somebody who hears everybody knows."""
    labels = {"pipeline": f"{deployment}/{model}"}
    return _samples(PIPELINE, depths, labels) + (_samples(QUEUE, depths, labels) if depths.prompts else [])


STAGE_INFO: Final = Metric("shardline_stage_info", "How the worker runs; always 1.", "gauge")


def _stage_info(labels: Mapping[str, str], h: StageHeartbeat) -> Sample:
    how = {"runner": h.runner, "device": h.device, "profile": h.profile, "kv_precision": h.kv_precision}
    return Sample(STAGE_INFO, {**labels, **how}, 1.0)


CONNECTED: Final = Metric("shardline_monitor_connected", "1 while monitor-run reaches the broker.", "gauge")


def connection_samples(*, connected: bool) -> list[Sample]:
    """Of the one who listens: without the broker it knows nothing of the others."""
    return [Sample(CONNECTED, {}, float(connected))]


def _labels(deployment: str, heartbeat: StageHeartbeat | DecoderHeartbeat) -> dict[str, str]:
    return {
        "pipeline": f"{deployment}/{heartbeat.model}",
        "pipeline_name": heartbeat.pipeline,
        "process": f"{heartbeat.host}:{heartbeat.pid}",
    }
