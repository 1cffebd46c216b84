"""The answers of a NATS micro service, so that `nats micro ls`, `info` and `stats` show what runs here.

Our own, because nats-py's module would subscribe to the endpoints itself: ours are served elsewhere, and know their
figures. Requests: `$SRV.PING`, `$SRV.INFO`, `$SRV.STATS`, each also with `.<name>` and `.<name>.<id>` (NATS ADR-32).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from engine.contract.control import DecoderHeartbeat, StageHeartbeat
from engine.contract.errors import BrokerError
from engine.transport.base import Incoming, Transport
from engine.transport.subjects import Subjects

REQUESTS: Final = "$SRV.>"
VERSION: Final = "0.1.0"
_ANSWERS: Final = {"PING": "ping", "INFO": "info", "STATS": "stats"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A subject that is served, and what it has done since the start."""

    name: str
    subject: str
    group: str = ""
    requests: int = 0
    errors: int = 0
    seconds: float = 0.0  # of work, all requests together
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])  # whatever else there is to know


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Who a process is."""

    name: str  # of its kind
    id: str  # of this process
    description: str
    metadata: Mapping[str, str]
    endpoints: Sequence[Endpoint]


def answer(subject: str, card: Card, started: datetime) -> bytes | None:
    """The answer to a request on this subject, or None when it is not for this process."""
    verb, *named = subject.split(".")[1:] or [""]
    if verb not in _ANSWERS or named != [card.name, card.id][: len(named)]:
        return None
    fields: dict[str, Any] = {
        "type": f"io.nats.micro.v1.{_ANSWERS[verb]}_response",
        "name": card.name,
        "id": card.id,
        "version": VERSION,
        "metadata": card.metadata,
    }
    if verb == "INFO":
        fields |= {"description": card.description, "endpoints": [_place(one) for one in card.endpoints]}
    elif verb == "STATS":
        fields |= {"started": started.isoformat(), "endpoints": [_figures(one) for one in card.endpoints]}
    return orjson.dumps(fields)


def _place(endpoint: Endpoint) -> dict[str, Any]:
    return {"name": endpoint.name, "subject": endpoint.subject, "queue_group": endpoint.group, "metadata": {}}


def _figures(endpoint: Endpoint) -> dict[str, Any]:
    nanoseconds = int(endpoint.seconds * 1e9)
    return {
        "name": endpoint.name,
        "subject": endpoint.subject,
        "queue_group": endpoint.group,
        "num_requests": endpoint.requests,
        "num_errors": endpoint.errors,
        "last_error": "",
        "processing_time": nanoseconds,
        "average_processing_time": nanoseconds // max(endpoint.requests, 1),
        "data": endpoint.data,
    }


class Discovery:
    """Answers whoever asks what runs here, until told to stop."""

    def __init__(self, transport: Transport, card: Callable[[], Card]) -> None:
        self._transport, self._card, self._started = transport, card, datetime.now(UTC)

    async def run(self, stop: asyncio.Event) -> None:
        """Answer until `stop`."""
        async with self._transport.subscribe(REQUESTS) as inbox:
            stopping = asyncio.create_task(stop.wait())
            while not stop.is_set():
                asked = asyncio.ensure_future(inbox.get())
                await asyncio.wait({asked, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    await self._answer(asked.result())
                else:
                    asked.cancel()

    async def _answer(self, message: Incoming) -> None:
        data = answer(message.subject, self._card(), self._started)
        if data is not None and message.reply:
            with suppress(BrokerError):  # who asked has given up by then
                await self._transport.publish(message.reply, data)


def stage_card(subjects: Subjects, heartbeat: StageHeartbeat) -> Card:
    """A worker."""
    place = (heartbeat.stage, heartbeat.incarnation)
    load = {"state": heartbeat.state, "waiting": heartbeat.waiting, "busy_share": round(heartbeat.busy_share, 3)}
    steps = Endpoint(
        name="steps",
        subject=subjects.stage(*place),
        requests=heartbeat.steps,
        errors=heartbeat.refused,
        seconds=heartbeat.busy_seconds,
        data=load | {"epoch": heartbeat.epoch},
    )
    return Card(
        name="shardline-stage",
        id=str(heartbeat.incarnation),
        description=f"stage {heartbeat.stage} of {heartbeat.stages} of {heartbeat.model}",
        metadata=_metadata(subjects, heartbeat)
        | {"stage": str(heartbeat.stage), "stages": str(heartbeat.stages), "runner": heartbeat.runner}
        | {"device": heartbeat.device, "profile": heartbeat.profile, "protocol": str(heartbeat.protocol)},
        endpoints=(steps, Endpoint(name="open", subject=subjects.stage_control(*place))),
    )


def decoder_card(subjects: Subjects, heartbeat: DecoderHeartbeat) -> Card:
    """A decoder. Durable prompts count as its requests too."""
    outcomes = heartbeat.answers.outcomes
    load = {"state": heartbeat.state, "waits_for": heartbeat.waits_for, "running": heartbeat.running}
    generate = Endpoint(
        name="generate",
        subject=subjects.generate,
        group="decoders",
        requests=sum(outcomes.values()),
        errors=outcomes.get("error", 0),
        seconds=heartbeat.answers.request_seconds.total,
        data=load | {"waiting": heartbeat.waiting, "tokens": heartbeat.tokens, "epoch": heartbeat.epoch},
    )
    return Card(
        name="shardline-decoder",
        id=heartbeat.decoder,
        description=f"decoder of {heartbeat.model}",
        metadata=_metadata(subjects, heartbeat) | {"prompts": subjects.prompt},
        endpoints=(generate, Endpoint(name="cancel", subject=subjects.cancel)),
    )


def _metadata(subjects: Subjects, heartbeat: StageHeartbeat | DecoderHeartbeat) -> dict[str, str]:
    where = {"host": heartbeat.host, "pid": str(heartbeat.pid)}
    return {"deployment": subjects.deployment, "model": subjects.model, **where}
