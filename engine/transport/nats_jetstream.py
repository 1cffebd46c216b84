# pyright: basic
"""The durable things: the work queue of prompts and the pipeline's lease, on JetStream."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    KeyValueConfig,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import (
    APIError,
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoKeysError,
    NoStreamResponseError,
    NotFoundError,
    ServiceUnavailableError,
)

from engine.contract.errors import BrokerError, LeaseLostError
from engine.transport.base import Job, QueueDepth
from engine.transport.memory import ACK_WAIT, dead_letter

MAX_PROMPTS: Final = 10_000  # waiting at the broker; more get an answer at once instead of an hour later
MAX_DEAD: Final = 10_000
DUPLICATE_SECONDS: Final = 120.0  # a publish repeated within it, with the same message id, is stored once
CONSUMER: Final = "decoder"
PUBLISH_SECONDS: Final = 5.0
API_ERRORS: Final = (NatsError, OSError, asyncio.TimeoutError)
_MAX_ACK_PENDING: Final = 20_000  # decoders bound themselves by their places
T = TypeVar("T")


async def _on_jetstream(url: str, action: Awaitable[T]) -> T:
    """Run an administrative call; a broker without JetStream is named as such."""
    try:
        return await action
    except (NoStreamResponseError, ServiceUnavailableError, NatsTimeoutError) as error:
        raise BrokerError(
            f"the broker at {url} has no JetStream (or it is not ready): start it with 'nats-server -js' "
            "or with deploy/nats/single.conf"
        ) from error
    except API_ERRORS as error:
        if "jetstream not enabled" in str(error).lower():
            raise BrokerError(f"the broker at {url} has no JetStream: start it with 'nats-server -js'") from error
        raise BrokerError(f"JetStream at {url}: {error}") from error


async def open_queue(
    client: Client, url: str, *, stream: str, subject: str, dead_stream: str, dead_subject: str
) -> "NatsQueue":
    """The work queue, its streams and its consumer made if missing. Raises BrokerError."""
    js = client.jetstream(timeout=PUBLISH_SECONDS)
    prompts = StreamConfig(
        name=stream,
        subjects=[subject],
        retention=RetentionPolicy.WORK_QUEUE,
        discard=DiscardPolicy.NEW,
        storage=StorageType.FILE,
        max_msgs=MAX_PROMPTS,
        duplicate_window=DUPLICATE_SECONDS,
    )
    dead = StreamConfig(
        name=dead_stream,
        subjects=[dead_subject],
        retention=RetentionPolicy.LIMITS,
        discard=DiscardPolicy.OLD,
        storage=StorageType.FILE,
        max_msgs=MAX_DEAD,
    )
    for config in (prompts, dead):
        await _ensure_stream(js, url, config)
    consumer = ConsumerConfig(
        durable_name=CONSUMER,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT,
        max_deliver=-1,
        max_ack_pending=_MAX_ACK_PENDING,
    )
    await _on_jetstream(url, js.add_consumer(stream, consumer))
    pull = await _on_jetstream(url, js.pull_subscribe_bind(CONSUMER, stream))
    return NatsQueue(js, pull, stream=stream, subject=subject, dead_stream=dead_stream, dead_subject=dead_subject)


async def _ensure_stream(js: JetStreamContext, url: str, config: StreamConfig) -> None:
    """Create a stream, or use one that is there if it does the same thing."""
    found = await _on_jetstream(url, _optional(js.stream_info, config.name or ""))
    if found is None:
        await _on_jetstream(url, js.add_stream(config))
        return
    for what in ("subjects", "retention"):
        there, wanted = getattr(found.config, what), getattr(config, what)
        if there != wanted:
            raise BrokerError(
                f"stream {config.name} at {url} has {what} {there}, not {wanted}: "
                "it belongs to something else; use another --deployment or remove it"
            )


async def _optional(call: Callable[[str], Awaitable[T]], name: str) -> T | None:
    try:
        return await call(name)
    except NotFoundError:
        return None


class NatsQueue:
    """See WorkQueue."""

    def __init__(
        self,
        js: JetStreamContext,
        pull: JetStreamContext.PullSubscription,
        *,
        stream: str,
        subject: str,
        dead_stream: str,
        dead_subject: str,
    ) -> None:
        self._js, self._pull = js, pull
        self._stream, self._subject = stream, subject
        self._dead_stream, self._dead_subject = dead_stream, dead_subject

    async def put(self, data: bytes, *, message_id: str = "") -> int:
        """See WorkQueue."""
        return await publish_prompt(self._js, self._subject, data, message_id)

    async def take(self, limit: int, *, timeout: float) -> list[Job]:
        """See WorkQueue."""
        try:
            messages = await self._pull.fetch(limit, timeout=timeout)
        except (TimeoutError, NatsTimeoutError):
            return []
        except API_ERRORS as error:
            raise BrokerError(f"cannot take prompts: {error}") from error
        return [
            NatsJob(self._js, self._dead_subject, m, m.data, m.metadata.sequence.stream, m.metadata.num_delivered or 1)
            for m in messages
        ]

    async def depth(self) -> QueueDepth:
        """See WorkQueue."""
        try:
            consumer = await self._js.consumer_info(self._stream, CONSUMER)
            dead = await self._js.stream_info(self._dead_stream)
        except API_ERRORS as error:
            raise BrokerError(f"cannot read the prompt queue: {error}") from error
        return QueueDepth(
            pending=consumer.num_pending or 0,
            working=consumer.num_ack_pending or 0,
            redelivered=consumer.num_redelivered or 0,
            dead=dead.state.messages,
        )


async def publish_prompt(js: JetStreamContext, subject: str, data: bytes, message_id: str) -> int:
    """Store a prompt; its sequence number. Raises BrokerError."""
    headers = {"Nats-Msg-Id": message_id} if message_id else None
    try:
        return (await js.publish(subject, data, timeout=PUBLISH_SECONDS, headers=headers)).seq
    except NoStreamResponseError as error:
        raise BrokerError(f"nobody keeps prompts on {subject}: start decoder-run, which makes the queue") from error
    except APIError as error:
        if "maximum messages exceeded" in str(error).lower():
            raise BrokerError(f"the prompt queue is full ({MAX_PROMPTS}): try again later") from error
        raise BrokerError(f"the broker does not take the prompt: {error}") from error
    except API_ERRORS as error:
        raise BrokerError(f"cannot publish the prompt: {error}") from error


@dataclass(eq=False)
class NatsJob:
    """See Job."""

    _js: JetStreamContext
    _dead_subject: str
    _message: Msg
    data: bytes
    sequence: int
    deliveries: int

    async def done(self) -> None:
        """See Job."""
        await self._settle(self._message.ack_sync(timeout=PUBLISH_SECONDS))

    async def keep(self) -> None:
        """See Job."""
        await self._settle(self._message.in_progress())

    async def give_back(self, delay: float) -> None:
        """See Job."""
        await self._settle(self._message.nak(delay=delay or None))

    async def bury(self, reason: str) -> None:
        """See Job."""
        letter = dead_letter(self.sequence, reason, self.data)
        headers = {"Nats-Msg-Id": f"dead-{self.sequence}"}  # buried twice is buried once
        await self._settle(self._js.publish(self._dead_subject, letter, timeout=PUBLISH_SECONDS, headers=headers))
        await self.done()  # as good as a term, and confirmed

    async def _settle(self, action: Awaitable[Any]) -> None:
        try:
            await action
        except API_ERRORS as error:
            raise BrokerError(f"prompt {self.sequence}: {error}") from error


async def open_lease(client: Client, url: str, *, bucket: str, key: str) -> "NatsLease":
    """The lease's bucket, made if missing. Raises BrokerError."""
    js = client.jetstream(timeout=PUBLISH_SECONDS)
    try:
        store = await js.key_value(bucket)
    except (BucketNotFoundError, NotFoundError):
        config = KeyValueConfig(bucket=bucket, history=1, storage=StorageType.FILE)
        store = await _on_jetstream(url, js.create_key_value(config))
    except API_ERRORS as error:
        raise BrokerError(f"lease at {url}: {error}") from error
    return NatsLease(store, key)


class NatsLease:
    """See Lease."""

    def __init__(self, store: Any, key: str) -> None:
        self._store, self._key = store, key

    async def read(self) -> tuple[int, bytes] | None:
        """See Lease. An expired or deleted key comes back as an entry without a value: that is none."""
        try:
            entry = await self._store.get(self._key)
        except (KeyNotFoundError, NoKeysError):
            return None
        except API_ERRORS as error:
            raise BrokerError(f"cannot read the lease: {error}") from error
        return (entry.revision, entry.value) if entry.value else None

    async def write(self, value: bytes, *, after: int) -> int:
        """See Lease."""
        try:
            if after:
                return await self._store.update(self._key, value, last=after)
            return await self._store.create(self._key, value)
        except KeyWrongLastSequenceError as error:
            raise LeaseLostError("another decoder has taken the pipeline's lease") from error
        except API_ERRORS as error:
            raise BrokerError(f"cannot write the lease: {error}") from error
