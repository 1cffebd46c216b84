# pyright: basic
"""nats-py's client with the repairs that we need of it (numbers: issues of nats-io/nats.py; see docs/decisions/0004).

- the reader takes 128 KiB at a time: a 256 KiB message costs a third less than with 32 KiB (measured);
- publishing only queues: nats-py waits inside `publish` when much is pending, and swallows a cancellation meanwhile;
- a PONG for a ping that was given up must not kill the reader (#624, #914);
- a link that is half open with unsent bytes hangs in `wait_closed` while reconnecting (#671): links are aborted;
- what was pending when a link was lost is dropped: steps of the past are useless to whoever gets them late;
- an attempt that times out leaves its socket open: it is aborted before the next;
- the first attempt comes at once, in all clients that lost the same broker: it waits a moment, each another one;
- a cancellation that comes together with an answer is lost in `wait_for` (Python 3.11): see `whole`;
- a request that the broker's permissions forbid fails at once, not at its timeout;
- a broker that offers no TLS where we want it would get everything in clear text: it gets nothing.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

import nats.aio.client as nats_client
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import ConnectionReconnectingError
from nats.errors import Error as NatsError

from engine.transport.inbox import QueueInbox
from engine.transport.nats_refusals import Refusals

READ_BYTES: Final = 128 * 1024
WATCH_SECONDS: Final = 2.0
MISSES: Final = 2  # echoes lost in a row before a link counts as dead
SPREAD_SECONDS: Final = 0.2  # within which clients come back that lost the same broker at the same moment
T = TypeVar("T")
log = logging.getLogger("shardline.transport")

nats_client.DEFAULT_BUFFER_SIZE = READ_BYTES  # read at call time by the client's reader and its connections


class NoTlsError(NatsError):
    """The broker does not speak TLS, and we speak nothing else."""


class RepairedClient(Client):
    """A Client that neither hangs nor goes deaf."""

    def __init__(self) -> None:
        super().__init__()
        self.online = asyncio.Event()  # set while connected
        self.inboxes: set[QueueInbox] = set()  # to be woken when the link was made anew
        self.offline = asyncio.Event()  # set while reconnecting
        self.refusals = Refusals()
        self.insists_on_tls = False

    async def request(self, subject: str, *args: Any, **options: Any) -> Msg:
        """As the library's; raises RefusedError besides."""
        return await self.refusals.unless_refused(subject, super().request(subject, *args, **options))

    def abort(self) -> None:
        """Cut the socket; whoever reads from it or waits for it to close goes on at once."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def drained(self) -> None:
        """Wait until next to nothing lies between the client and the socket."""
        await self.sent(above=0)
        if self._transport is not None:
            await self._transport.drain()

    def forget_pending(self) -> None:
        """Drop what waits to be sent, and let go whoever waits for it."""
        self._pending, self._pending_data_size = [], 0
        while self._flush_queue is not None and not self._flush_queue.empty():
            waiter = self._flush_queue.get_nowait()
            if not waiter.done():
                waiter.set_result(None)

    async def sent(self, *, above: int) -> None:
        """Wait while more than `above` bytes are pending. Raises ConnectionReconnectingError when the link is lost."""
        while self._pending_data_size > above and self._flush_queue is not None:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await self._flush_queue.put(written)
            await written
            if not self.is_connected:
                raise ConnectionReconnectingError

    def _connect_command(self) -> bytes:
        if self.insists_on_tls and not self._server_info.get("tls_required"):
            raise NoTlsError("nats: the broker offers no TLS")
        return super()._connect_command()

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:
        self._pending.insert(0 if priority else len(self._pending), cmd)
        self._pending_data_size += len(cmd)

    async def _process_pong(self) -> None:
        while self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
        await super()._process_pong()

    async def _connect_to_server(self, s: Any) -> None:
        self.abort()
        await super()._connect_to_server(s)

    async def _attempt_reconnect(self) -> None:
        self.online.clear()
        self.offline.set()
        self.abort()
        self.forget_pending()
        await asyncio.sleep(random.uniform(0, SPREAD_SECONDS))
        await super()._attempt_reconnect()
        if self.is_connected:
            self.offline.clear()
            self.online.set()
            for inbox in self.inboxes:
                inbox.wake()


async def whole(call: Coroutine[Any, Any, T]) -> T:
    """The result of a call of nats-py; cancelled means cancelled, even if the answer comes at the same moment.

    nats-py waits through `asyncio.wait_for`, which then returns the answer, and who was told to stop goes on for ever.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    return task.result()


def reconnect_pause() -> float:
    """Seconds between attempts, different in each process: many clients must not come back as one."""
    return random.uniform(0.1, 0.5)


class Echo:
    """Round trips through the broker to ourselves."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._subject = client.new_inbox()
        self._number = 0
        self._away: dict[bytes, asyncio.Future[None]] = {}

    async def start(self) -> None:
        """Subscribe; the client does it again by itself after a reconnect."""
        await self._client.subscribe(self._subject, cb=self._came_back)

    async def send(self) -> asyncio.Future[None]:
        """Send one off; what is returned is done once it came back."""
        self._number += 1
        name = str(self._number).encode()
        back: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        back.add_done_callback(lambda _: self._away.pop(name, None))
        self._away[name] = back
        await self._client.publish(self._subject, name)
        return back

    async def _came_back(self, message: Any) -> None:
        back = self._away.get(message.data)
        if back is not None and not back.done():
            back.set_result(None)


class Watchdog:
    """Sends an echo through the broker every two seconds; makes a link anew that does not bring it back."""

    def __init__(self, client: RepairedClient, echo: Echo, seconds: float = WATCH_SECONDS) -> None:
        self._client, self._echo, self._seconds = client, echo, seconds
        self._misses = 0

    async def run(self) -> None:
        """Watch for ever."""
        while True:
            await self._client.online.wait()
            if await self._alive():
                self._misses = 0
                continue
            self._misses += 1
            reader = self._client._reading_task
            deaf = reader is not None and reader.done()
            if self._client.is_connected and (deaf or self._misses >= MISSES):
                log.warning("no echo from the broker for %.0f s: connecting again", self._misses * self._seconds)
                self._misses = 0
                await self._client.force_reconnect()

    async def _alive(self) -> bool:
        """One echo came back in time, or the client has noticed by itself that the link is gone."""
        link = self._client.stats["reconnects"]
        back = None
        with suppress(NatsError, OSError):  # the client has closed: its closed_cb says so
            back = await self._echo.send()
        await asyncio.sleep(self._seconds)
        came = back is not None and back.done()
        if back is not None:
            back.cancel()
        return came or not self._client.is_connected or self._client.stats["reconnects"] != link


class Lifeline:
    """Interrupts the task that uses a connection when the broker has ended it for good, as `asyncio.timeout` would."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        self._error = error
        self._task: asyncio.Task[Any] | None = None
        self._before = 0
        self._cut = False

    def cut(self, error: Exception | None = None) -> None:
        """The connection is closed and will not come back, or of no use any more because of `error`."""
        if not self._cut:
            self._cut = True
            if error is not None:
                self._error = lambda: error
            if self._task is not None:
                self._task.cancel()

    async def __aenter__(self) -> None:
        if self._cut:
            raise self._error()
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task else 0

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        task, self._task = self._task, None
        if not self._cut or task is None:
            return
        if task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise self._error() from None
