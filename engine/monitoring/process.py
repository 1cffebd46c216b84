"""What a process lets others see of it beside its heartbeats: /metrics where asked for, and NATS discovery."""

from collections.abc import Callable, Iterable

from engine.contract.control import DecoderHeartbeat, StageHeartbeat
from engine.monitoring.discovery import Discovery, decoder_card, stage_card
from engine.monitoring.endpoint import MetricsEndpoint
from engine.monitoring.metrics import Sample, decoder_samples, stage_samples
from engine.transport.base import Transport
from engine.transport.subjects import Subjects

Announce = Callable[[str], None]
Shown = tuple[Discovery] | tuple[Discovery, MetricsEndpoint]


def show_stage(
    transport: Transport, subjects: Subjects, beat: Callable[[], StageHeartbeat], metrics: str, announce: Announce
) -> Shown:
    """Services beside a worker; `metrics`: where to serve them, "" for nowhere. Raises UsageError."""
    discovery = Discovery(transport, lambda: stage_card(subjects, beat()))
    return _shown(discovery, lambda: stage_samples(subjects.deployment, beat()), metrics, announce)


def show_decoder(
    transport: Transport, subjects: Subjects, beat: Callable[[], DecoderHeartbeat], metrics: str, announce: Announce
) -> Shown:
    """Services beside a decoder, likewise."""
    discovery = Discovery(transport, lambda: decoder_card(subjects, beat()))
    return _shown(discovery, lambda: decoder_samples(subjects.deployment, beat()), metrics, announce)


def _shown(discovery: Discovery, samples: Callable[[], Iterable[Sample]], metrics: str, announce: Announce) -> Shown:
    async def collect() -> Iterable[Sample]:
        return samples()

    return (discovery, MetricsEndpoint(metrics, collect, announce=announce)) if metrics else (discovery,)
