# pyright: basic
"""The work queue of prompts, on a JetStream stream with one durable pull consumer."""

import asyncio
import functools
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RawStreamMsg,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from engine.contract.errors import RETRY_AFTER, BrokerError, OverloadedError
from engine.transport.base import DeadLetter, Job, QueueDepth, QueueUse, Stored
from engine.transport.durable import (
    ACK_WAIT,
    DUPLICATE_SECONDS,
    MAX_DEAD,
    MAX_PROMPTS,
    PROMPT_BYTES,
    read_letter,
)
from engine.transport.nats_client import RepairedClient, whole
from engine.transport.nats_jetstream import (
    ANSWER_SECONDS,
    API_ERRORS,
    NO_ROOM,
    STREAM_FULL,
    administer,
    ensure_stream,
    optional,
)
from engine.transport.nats_job import QueuePlace, job_of

CONSUMER: Final = "decoder"
PULL_SECONDS: Final = 2.0  # a pull request that a restarted broker has forgotten is noticed after that long
DEAD_BYTES: Final = 64 * 1024 * 1024
_MAX_ACK_PENDING: Final = 2 * MAX_PROMPTS  # never the bound: decoders take what they have places for
_RETRY_SECONDS: Final = 0.25
NO_MESSAGE: Final = 10043  # there is none with that number (of a stream that lost it)


async def open_queue(
    client: RepairedClient,
    url: str,
    *,
    stream: str,
    subject: str,
    dead_stream: str,
    dead_subject: str,
    use: QueueUse = "put",
) -> "NatsQueue":
    """The work queue, its streams and its consumer made if missing, unless to look; the consumer renewed to take.

    Raises BrokerError.

    The size of one prompt has no bound of its own: the broker's max_payload is one, and may be raised later.
    """
    js = client.jetstream(timeout=ANSWER_SECONDS)
    prompts = StreamConfig(
        name=stream,
        subjects=[subject],
        retention=RetentionPolicy.WORK_QUEUE,
        discard=DiscardPolicy.NEW,
        storage=StorageType.FILE,
        max_msgs=MAX_PROMPTS,
        max_bytes=PROMPT_BYTES,
        duplicate_window=DUPLICATE_SECONDS,
    )
    dead = StreamConfig(
        name=dead_stream,
        subjects=[dead_subject],
        retention=RetentionPolicy.LIMITS,
        discard=DiscardPolicy.OLD,
        storage=StorageType.FILE,
        max_msgs=MAX_DEAD,
        max_bytes=DEAD_BYTES,
    )
    consumer = ConsumerConfig(
        durable_name=CONSUMER,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT,
        max_deliver=-1,  # whoever takes a job counts and buries it: the broker would only hide it
        max_ack_pending=_MAX_ACK_PENDING,
    )
    for config in (prompts, dead):
        await ensure_stream(js, url, config, make=use != "look")
    if use == "take" or await administer(url, optional(functools.partial(js.consumer_info, stream), CONSUMER)) is None:
        await administer(url, js.add_consumer(stream, consumer))
    return NatsQueue(QueuePlace(client, js, stream, subject, dead_stream, dead_subject))


class NatsQueue:
    """See WorkQueue."""

    def __init__(self, place: QueuePlace) -> None:
        self._place = place
        self._pull: JetStreamContext.PullSubscription | None = None

    async def put(self, data: bytes, *, message_id: str = "") -> Stored:
        """See WorkQueue. Tried again while the broker has not opened the stream yet, as after a restart."""
        place, headers = self._place, {"Nats-Msg-Id": message_id} if message_id else None
        size = len(data) + (len(f"NATS/1.0\r\nNats-Msg-Id: {message_id}\r\n\r\n") if message_id else 0)
        if size > place.client.max_payload:
            raise BrokerError(f"prompt of {len(data)} bytes, the broker takes {place.client.max_payload} (max_payload)")
        deadline = asyncio.get_running_loop().time() + ANSWER_SECONDS
        while True:
            try:
                done = await whole(place.js.publish(place.subject, data, timeout=ANSWER_SECONDS, headers=headers))
                return Stored(done.seq, bool(done.duplicate))
            except NoStreamResponseError as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise BrokerError(f"the stream {place.stream} is gone: restart decoder-run") from error
                await asyncio.sleep(_RETRY_SECONDS)
            except APIError as error:
                raise _refusal(error) from error
            except NatsTimeoutError as error:
                raise BrokerError(
                    f"the broker has not confirmed the prompt within {ANSWER_SECONDS:.0f} s; it may be stored. "
                    "If that goes on: is the broker's disk full? It says so in its log, and starts again to go on"
                ) from error
            except API_ERRORS as error:
                raise BrokerError(f"cannot publish the prompt: {error}") from error

    async def take(self, limit: int, *, timeout: float) -> list[Job]:
        """See WorkQueue. One at a time: nats-py's fetch of several may hold the first back to wait for the others.

        (A status that comes late makes it send a second request, which outlives the call and takes the next message.)
        Nothing is asked of a broker that is away: such requests would pile up until it is back.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            async with asyncio.timeout(timeout):
                await self._place.client.online.wait()
        except TimeoutError:
            return []
        while True:
            left = deadline - loop.time()
            messages = await self._fetch(min(left, PULL_SECONDS)) if left > 0 else []
            if messages or left <= PULL_SECONDS:
                return [job_of(self._place, message) for message in messages]

    async def _fetch(self, timeout: float) -> list[Msg]:
        try:
            if self._pull is None:
                self._pull = await whole(self._place.js.pull_subscribe_bind(CONSUMER, self._place.stream))
            fetching = asyncio.create_task(self._pull.fetch(1, timeout=timeout))
        except API_ERRORS as error:
            raise BrokerError(f"cannot take prompts: {error}") from error
        try:
            await asyncio.wait({fetching})
        except asyncio.CancelledError:
            await self._abandon(fetching)
            raise
        try:
            return fetching.result()
        except (TimeoutError, NatsTimeoutError):
            return []
        except API_ERRORS as error:
            raise BrokerError(f"cannot take prompts: {error}") from error

    async def _abandon(self, fetching: "asyncio.Task[list[Msg]]") -> None:
        """Nobody waits any more: the broker must not send to us what then lies here until the ack wait is over."""
        fetching.cancel()
        [fetched] = await asyncio.gather(fetching, return_exceptions=True)
        came: list[Any] = [] if isinstance(fetched, BaseException) else list(fetched)
        pull, self._pull = self._pull, None
        if pull is None:
            return
        with suppress(*API_ERRORS):
            waiting = pull._sub._pending_queue
            await pull.unsubscribe()
            while waiting is not None and not waiting.empty():
                came.append(waiting.get_nowait())
            for message in came:
                if message is not None and message.reply.startswith("$JS.ACK."):
                    await message.nak()

    async def depth(self) -> QueueDepth:
        """See WorkQueue."""
        try:
            consumer = await whole(self._place.js.consumer_info(self._place.stream, CONSUMER))
            dead = await whole(self._place.js.stream_info(self._place.dead_stream))
            oldest = await whole(self._oldest()) if consumer.num_pending or consumer.num_ack_pending else 0.0
        except API_ERRORS as error:
            raise BrokerError(f"cannot read the prompt queue: {error}") from error
        return QueueDepth(
            pending=consumer.num_pending or 0,
            working=consumer.num_ack_pending or 0,
            redelivered=consumer.num_redelivered or 0,
            dead=dead.state.messages,
            oldest=oldest,
        )

    async def _oldest(self) -> float:
        """Seconds since the first prompt of the stream was stored, by the broker's clock; nats-py leaves that out."""
        js = self._place.js
        info = await js._api_request(f"{js._prefix}.STREAM.INFO.{self._place.stream}", timeout=js._timeout)
        if not info["state"]["messages"]:
            return 0.0
        asked, first = map(datetime.fromisoformat, (info["ts"], info["state"]["first_ts"]))  # nanoseconds are cut off
        return max((asked - first).total_seconds(), 0.0)

    async def letters(self) -> list[DeadLetter]:
        """See WorkQueue."""
        place, found, at = self._place, list[DeadLetter](), 1
        try:
            while (letter := await self._letter(at)) is not None:
                found.append(read_letter(letter.seq or 0, letter.data or b""))
                at = found[-1].place + 1
        except API_ERRORS as error:
            raise BrokerError(f"cannot read the dead letters in {place.dead_stream}: {error}") from error
        return found

    async def _letter(self, at: int) -> RawStreamMsg | None:
        """The first at that place or behind it."""
        place = self._place
        try:
            return await place.js.get_msg(place.dead_stream, seq=at, subject=place.dead_subject, next=True)
        except NotFoundError:
            return None

    async def remove_letter(self, place: int) -> None:
        """See WorkQueue."""
        try:
            await self._place.js.delete_msg(self._place.dead_stream, place)
        except APIError as error:
            if error.err_code != NO_MESSAGE:
                raise BrokerError(f"cannot remove dead letter {place}: {error.description}") from error
        except API_ERRORS as error:
            raise BrokerError(f"cannot remove dead letter {place}: {error}") from error


def _refusal(error: APIError) -> BrokerError:
    if error.err_code == STREAM_FULL:
        most = f"{MAX_PROMPTS} prompts or {PROMPT_BYTES // 2**20} MiB"
        return OverloadedError(f"the prompt queue is full ({most}): try again in {RETRY_AFTER} s")
    if error.err_code in NO_ROOM:
        return OverloadedError(
            f"the broker has no room left for prompts: try again in {RETRY_AFTER} s, or give JetStream more (max_file)"
        )
    return BrokerError(f"the broker does not take the prompt: {error.description}")
