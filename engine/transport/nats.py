# pyright: basic
"""Transport over a NATS broker: core NATS for steps and events, JetStream for the queue and the lease."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from engine.contract.errors import BrokerError, NoResponderError
from engine.transport.base import Incoming, Lease, WorkQueue
from engine.transport.inbox import QueueInbox
from engine.transport.nats_client import RepairedClient, Watchdog, reconnect_pause
from engine.transport.nats_jetstream import open_lease, open_queue

PATIENCE_SECONDS: Final = 1.0  # before "waiting for the broker" is worth a line
BARRIER_SECONDS: Final = 5.0
PENDING_BYTES: Final = 16 * 1024 * 1024  # of the client's write buffer; publishes wait above it
SUBSCRIPTION_BYTES: Final = 512 * 1024 * 1024  # our inboxes are bounded by messages, so the client's bound is not
log = logging.getLogger("shardline.transport")


class NatsTransport:
    """See Transport."""

    def __init__(self, client: RepairedClient, url: str) -> None:
        self._client, self._url = client, url

    @property
    def max_payload(self) -> int:
        """See Transport."""
        return self._client.max_payload

    @property
    def connected(self) -> bool:
        """See Transport."""
        return self._client.is_connected

    async def publish(self, subject: str, data: bytes, *, reply: str = "") -> None:
        """See Transport. Nothing is kept for later while the broker is away: stale steps would be useless."""
        if not self._client.is_connected:
            raise BrokerError(f"not connected to the broker at {self._url}")
        if len(data) > self._client.max_payload:
            raise BrokerError(
                f"message of {len(data)} bytes on {subject}, the broker takes {self._client.max_payload}: "
                "raise max_payload in its configuration"
            )
        try:
            await self._client.publish(subject, data, reply=reply)
        except (NatsError, OSError) as error:
            raise BrokerError(f"cannot publish on {subject}: {error}") from error

    async def request(self, subject: str, data: bytes, *, timeout: float) -> Incoming:
        """See Transport."""
        if not self._client.is_connected:
            raise BrokerError(f"not connected to the broker at {self._url}")
        try:
            answer = await self._client.request(subject, data, timeout=timeout)
        except NoRespondersError as error:
            raise NoResponderError(f"nobody answers on {subject}") from error
        except NatsTimeoutError as error:
            raise TimeoutError(f"no answer on {subject} within {timeout} s") from error
        except (NatsError, OSError) as error:
            raise BrokerError(f"cannot ask on {subject}: {error}") from error
        return Incoming(answer.subject, answer.data, answer.reply)

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

        subscription = await self._client.subscribe(
            subject, queue=group, cb=arrived, pending_bytes_limit=SUBSCRIPTION_BYTES
        )
        await self.barrier()
        try:
            yield inbox
        finally:
            with suppress(NatsError, OSError):  # a closed connection has no subscriptions
                await subscription.unsubscribe()

    async def barrier(self) -> None:
        """See Transport. A round trip, because nats-py's flush overtakes its own pending messages."""
        inbox = self._client.new_inbox()
        came = asyncio.Event()

        async def arrived(_: Msg) -> None:
            came.set()

        subscription = await self._client.subscribe(inbox, cb=arrived, max_msgs=1)
        try:
            async with asyncio.timeout(BARRIER_SECONDS):
                await self.publish(inbox, b"")
                await came.wait()
        except TimeoutError as error:
            raise BrokerError(f"the broker at {self._url} does not answer") from error
        finally:
            if not came.is_set():
                with suppress(NatsError, OSError):
                    await subscription.unsubscribe()

    async def work_queue(self, *, stream: str, subject: str, dead_stream: str, dead_subject: str) -> WorkQueue:
        """See Transport."""
        return await open_queue(
            self._client, self._url, stream=stream, subject=subject, dead_stream=dead_stream, dead_subject=dead_subject
        )

    async def lease(self, *, bucket: str, key: str) -> Lease:
        """See Transport."""
        return await open_lease(self._client, self._url, bucket=bucket, key=key)


@asynccontextmanager
async def connect(url: str, *, name: str, wait: float | None = None) -> AsyncGenerator[NatsTransport]:
    """Connect, for as long as it takes or `wait` seconds; a link that dies is made anew for ever.

    Raises BrokerError: nobody there in time, or the broker refuses us for good.
    """
    client = RepairedClient()
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    await _connect(client, url, name, wait, failed)
    main = asyncio.current_task()
    watchdog = asyncio.create_task(Watchdog(client).run())

    def closed(_: object) -> None:
        if main is not None and not failed.cancelled():
            main.cancel("broker")

    failed.add_done_callback(closed)
    try:
        yield NatsTransport(client, url)
    except asyncio.CancelledError:
        if failed.done() and not failed.cancelled():
            raise BrokerError(f"the broker at {url} has closed the connection for good: {client.last_error}") from None
        raise
    finally:
        failed.cancel()
        watchdog.cancel()
        with suppress(asyncio.CancelledError):
            await watchdog
        await _close(client)


def _options(url: str, name: str, failed: asyncio.Future[None]) -> dict[str, Any]:
    """How the client is set up. Its callbacks must not raise: it would stop reconnecting (#204)."""

    async def on_error(error: Exception) -> None:
        log.debug("broker client: %s", error)

    async def on_disconnect() -> None:
        if not failed.cancelled():
            log.warning("lost the broker at %s, reconnecting", url)

    async def on_reconnect() -> None:
        log.info("reconnected to the broker at %s", url)

    async def on_close() -> None:
        if not failed.done():
            failed.set_result(None)

    return {
        "name": f"shardline-{name}",
        "error_cb": on_error,
        "disconnected_cb": on_disconnect,
        "reconnected_cb": on_reconnect,
        "closed_cb": on_close,
        "connect_timeout": 2,
        "reconnect_time_wait": reconnect_pause(),
        "max_reconnect_attempts": -1,
        "ping_interval": 5,
        "max_outstanding_pings": 3,
        "pending_size": PENDING_BYTES,
    }


async def _connect(
    client: RepairedClient, url: str, name: str, wait: float | None, failed: asyncio.Future[None]
) -> None:
    attempt = asyncio.ensure_future(client.connect(url, **_options(url, name, failed)))
    try:
        done, _ = await asyncio.wait({attempt}, timeout=PATIENCE_SECONDS if wait is None else wait)
        if not done and wait is None:
            log.info("waiting for the broker at %s", url)
            done, _ = await asyncio.wait({attempt})
        if not done:
            raise BrokerError(f"no broker at {url}: start nats-server, or name another one with --nats")
        attempt.result()
    except (NatsError, OSError, ValueError) as error:
        raise BrokerError(f"cannot use the broker at {url}: {error}") from error
    finally:
        attempt.cancel()


async def _close(client: RepairedClient) -> None:
    """What was published goes out, then the link ends."""
    with suppress(NatsError, OSError, asyncio.TimeoutError):
        if client.is_connected:
            async with asyncio.timeout(BARRIER_SECONDS):
                await client._flush_pending(force_flush=True)
        await client.close()
