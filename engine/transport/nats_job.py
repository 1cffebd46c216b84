# pyright: basic
"""One durable prompt in the hands of a decoder."""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

from nats.aio.msg import Msg
from nats.js import JetStreamContext

from engine.contract.errors import BrokerError
from engine.transport.durable import dead_letter
from engine.transport.nats_client import RepairedClient, whole
from engine.transport.nats_jetstream import ANSWER_SECONDS, API_ERRORS

LETTER_MARGIN: Final = 1024  # bytes of max_payload for the headers of a dead letter


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where one model's prompts are."""

    client: RepairedClient
    js: JetStreamContext
    stream: str
    subject: str
    dead_stream: str
    dead_subject: str


def job_of(place: QueuePlace, message: Msg) -> "NatsJob":
    """What the broker has handed to us."""
    delivery = message.metadata
    return NatsJob(place, message, message.data, delivery.sequence.stream, delivery.num_delivered or 1)


@dataclass(eq=False, slots=True)
class NatsJob:
    """See Job."""

    _place: QueuePlace
    _message: Msg
    data: bytes
    sequence: int
    deliveries: int

    async def done(self) -> None:
        """See Job."""
        await self._settle(self._message.ack_sync(timeout=ANSWER_SECONDS))

    async def keep(self) -> None:
        """See Job."""
        await self._settle(self._message.in_progress())

    async def give_back(self, delay: float) -> None:
        """See Job."""
        await self._settle(self._message.nak(delay=delay or None))

    async def bury(self, reason: str) -> None:
        """See Job."""
        place = self._place
        letter = dead_letter(self.sequence, reason, self.data, limit=place.client.max_payload - LETTER_MARGIN)
        headers = {"Nats-Msg-Id": f"dead-{self.sequence}"}  # buried twice is buried once
        await self._settle(place.js.publish(place.dead_subject, letter, timeout=ANSWER_SECONDS, headers=headers))
        await self.done()  # as good as a term, and confirmed

    async def _settle(self, action: Coroutine[Any, Any, Any]) -> None:
        try:
            await whole(action)
        except API_ERRORS as error:
            raise BrokerError(f"prompt {self.sequence}: {error}") from error
