# pyright: basic
"""Transport over a NATS broker: core NATS for steps and events, JetStream for the queue and the lease."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from engine.contract.errors import BrokerError, NoResponderError
from engine.contract.facts import Broker
from engine.contract.figures import Link
from engine.transport.address import shown
from engine.transport.base import EventLog, FileStore, Incoming, Lease, QueueUse, WorkQueue
from engine.transport.inbox import QueueInbox
from engine.transport.nats_client import WATCH_SECONDS, Echo, Lifeline, RepairedClient, Watchdog, whole
from engine.transport.nats_connect import close_client, open_client
from engine.transport.nats_facts import look_at_broker
from engine.transport.nats_files import open_files, streams_of
from engine.transport.nats_lease import open_lease
from engine.transport.nats_log import open_log
from engine.transport.nats_queue import open_queue

BROKER_SECONDS: Final = 3.0  # for `wait`: a person waits for the broker
BARRIER_SECONDS: Final = 5.0
PENDING_BYTES: Final = 8 * 1024 * 1024  # more than this, or than two of the largest messages, makes publishers wait
SUBSCRIPTION_BYTES: Final = 512 * 1024 * 1024  # our inboxes are bounded by messages, so the client's bound is not


class NatsTransport:
    """See Transport."""

    def __init__(self, client: RepairedClient, echo: Echo, url: str) -> None:
        self._client, self._echo, self._url = client, echo, url

    @property
    def max_payload(self) -> int:
        """See Transport."""
        return self._client.max_payload

    @property
    def connected(self) -> bool:
        """See Transport."""
        return self._client.is_connected

    async def online(self) -> None:
        """See Transport."""
        await self._client.online.wait()

    @property
    def link(self) -> Link:
        """See Transport."""
        stats = self._client.stats
        return Link(
            sent_bytes=stats["out_bytes"],
            received_bytes=stats["in_bytes"],
            sent_messages=stats["out_msgs"],
            received_messages=stats["in_msgs"],
            reconnects=stats["reconnects"],
        )

    async def publish(self, subject: str, data: bytes, *, reply: str = "") -> None:
        """See Transport. Nothing is kept for later while the broker is away: stale steps would be useless."""
        self._check(subject, data)
        try:
            await self._client.publish(subject, data, reply=reply)
            await self._client.sent(above=max(PENDING_BYTES, 2 * self._client.max_payload))
        except (NatsError, OSError) as error:
            raise BrokerError(f"cannot publish on {subject}: {error}") from error

    async def request(self, subject: str, data: bytes, *, timeout: float) -> Incoming:
        """See Transport."""
        self._check(subject, data)
        try:
            answer = await whole(self._client.request(subject, data, timeout=timeout))
        except NoRespondersError as error:
            raise NoResponderError(f"nobody answers on {subject}") from error
        except NatsTimeoutError as error:
            raise TimeoutError(f"no answer on {subject} within {timeout} s") from error
        except (NatsError, OSError) as error:
            raise BrokerError(f"cannot ask on {subject}: {error}") from error
        return Incoming(answer.subject, answer.data, answer.reply)

    def new_inbox(self) -> str:
        """See Transport."""
        return self._client.new_inbox()

    async def rehearse(self, *subjects: str) -> None:
        """See Transport."""
        with ExitStack() as stack:
            refusals = [
                stack.enter_context(self._client.refusals.listening("publish", subject)) for subject in subjects
            ]
            for subject in subjects:
                await self.publish(subject, b"")
            await self.barrier()
            for refused in refusals:
                if refused.done():
                    refused.result()

    def _check(self, subject: str, data: bytes) -> None:
        if not self._client.is_connected:
            raise BrokerError(f"not connected to the broker at {self._url}")
        if len(data) > self._client.max_payload:
            raise BrokerError(
                f"message of {len(data)} bytes on {subject}, the broker takes {self._client.max_payload}: "
                "raise max_payload in its configuration"
            )

    @asynccontextmanager
    async def subscribe(
        self, subject: str, *, limit: int = 4096, group: str = "", wake: asyncio.Event | None = None
    ) -> AsyncGenerator[QueueInbox]:
        """See Transport."""
        inbox = QueueInbox(limit, wake)

        async def arrived(message: Msg) -> None:
            headers = message.headers
            gone = not message.data and headers is not None and headers.get("Status") == "503"
            inbox.put(message.subject, message.data, message.reply, no_responder=gone)

        try:
            subscription = await self._client.subscribe(
                subject, queue=group, cb=arrived, pending_bytes_limit=SUBSCRIPTION_BYTES
            )
        except (NatsError, OSError) as error:
            raise BrokerError(f"cannot subscribe to {subject}: {error}") from error
        self._client.inboxes.add(inbox)
        try:
            with self._client.refusals.listening("subscription", subject) as refused:
                await self.barrier()
                if refused.done():
                    refused.result()
            yield inbox
        finally:
            self._client.inboxes.discard(inbox)
            with suppress(NatsError, OSError):  # a closed connection has no subscriptions
                await subscription.unsubscribe()

    async def barrier(self) -> None:
        """See Transport. A round trip, because nats-py's flush overtakes its own pending messages."""
        await asyncio.sleep(0)  # who tries again and again must not keep us from connecting
        self._check("", b"")
        try:
            async with asyncio.timeout(BARRIER_SECONDS):
                await (await self._echo.send())
        except (TimeoutError, NatsError, OSError) as error:
            raise BrokerError(f"the broker at {self._url} does not answer") from error

    async def work_queue(
        self, *, stream: str, subject: str, dead_stream: str, dead_subject: str, use: QueueUse = "put"
    ) -> WorkQueue:
        """See Transport."""
        return await open_queue(
            self._client,
            self._url,
            stream=stream,
            subject=subject,
            dead_stream=dead_stream,
            dead_subject=dead_subject,
            use=use,
        )

    async def event_log(self, *, stream: str, subject: str, shown: str, writer: str = "") -> EventLog:
        """See Transport."""
        return await open_log(self._client, self._url, stream=stream, subject=subject, shown=shown, writer=writer)

    async def file_store(self, *, stream: str, subject: str, create: bool) -> FileStore | None:
        """See Transport."""
        return await open_files(self._client, self._url, stream=stream, subject=subject, create=create)

    async def streams_of(self, subject: str) -> list[str]:
        """See Transport."""
        return await streams_of(self._client, self._url, subject)

    async def facts(self) -> Broker:
        """What this connection shows of its broker. Raises BrokerError."""
        return await look_at_broker(self._client, self._url, self.barrier)

    async def lease(self, *, bucket: str, key: str) -> Lease:
        """See Transport."""
        return await open_lease(self._client, self._url, bucket=bucket, key=key)


@asynccontextmanager
async def connect(
    url: str, *, name: str, wait: float | None = None, watch: float = WATCH_SECONDS
) -> AsyncGenerator[NatsTransport]:
    """Connect, for as long as it takes or `wait` seconds; a link that dies is made anew for ever.

    `url`: a BrokerUrl says with which key and over which TLS.
    `watch`: seconds between the echoes that tell whether the link lives. When the broker ends the connection for good,
    the task that entered is interrupted and the context raises BrokerError; also when it refuses one of our subjects.
    Raises BrokerError: nobody there in time, or the broker refuses us. UsageError: `url` is not an address.
    """
    client, where = RepairedClient(), shown(url)
    lifeline = Lifeline(
        lambda: BrokerError(f"the broker at {where} ended the connection for good: {client.last_error}")
    )
    client.refusals.fatal = lifeline.cut
    await open_client(client, url, name=name, wait=wait, closed=lifeline.cut)
    try:
        echo = Echo(client)
        await echo.start()
        watchdog = asyncio.create_task(Watchdog(client, echo, watch).run())
        try:
            async with lifeline:
                yield NatsTransport(client, echo, where)
        finally:
            watchdog.cancel()
            await asyncio.wait({watchdog})
    finally:
        await close_client(client)
