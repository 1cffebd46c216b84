# pyright: basic
"""nats-py's client with the repairs that we need of it (numbers: issues of nats-io/nats.py).

- the reader takes 128 KiB at a time: a 256 KiB message costs a third less than with 32 KiB (measured);
- a PONG for a ping that was given up must not kill the reader (#624, #914);
- a link that is half open with unsent bytes hangs in `wait_closed` while reconnecting (#671): it is aborted;
- there is no jitter between reconnects of many clients: each process draws its own pause.
"""

import asyncio
import logging
import random
from typing import Final

import nats.aio.client as nats_client
from nats.aio.client import Client

READ_BYTES: Final = 128 * 1024
WATCH_SECONDS: Final = 2.0
MISSES: Final = 2  # echoes lost in a row before a link counts as dead
log = logging.getLogger("shardline.transport")

nats_client.DEFAULT_BUFFER_SIZE = READ_BYTES  # read at call time by the client's reader and its connections


class RepairedClient(Client):
    """A Client whose reader survives late PONGs."""

    async def _process_pong(self) -> None:
        while self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
        await super()._process_pong()


def reconnect_pause() -> float:
    """Seconds between attempts, different in each process."""
    return random.uniform(0.1, 0.5)


class Watchdog:
    """Sends an echo through the broker every two seconds; aborts a link that does not bring it back.

    It also ends a reconnect that hangs in closing the old link.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._echo = asyncio.Event()
        self._revival: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Watch for ever."""
        subject = self._client.new_inbox()
        await self._client.subscribe(subject, cb=self._came_back)
        misses = 0
        while True:
            self._echo.clear()
            if self._client.is_connected:
                await self._client.publish(subject, b"")
            await asyncio.sleep(WATCH_SECONDS)
            if self._echo.is_set():
                misses = 0
                continue
            misses += 1
            if misses >= MISSES and self._abort():
                misses = 0

    async def _came_back(self, _: object) -> None:
        self._echo.set()

    def _abort(self) -> bool:
        """Cut the socket; whoever reads from it or waits for it to close goes on at once."""
        writer = getattr(self._client._transport, "_io_writer", None)
        if writer is None:
            return False
        log.warning("no echo from the broker for %.0f s: dropping the link", MISSES * WATCH_SECONDS)
        writer.transport.abort()
        if self._client.is_connected and self._client._reading_task and self._client._reading_task.done():
            self._revival = asyncio.ensure_future(self._client.force_reconnect())  # a reader that is gone is deaf
        return True
