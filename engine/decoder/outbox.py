"""Events on their way out, in order; kept while the broker is away, because clients must not miss one."""

import asyncio
import logging
from collections import deque
from typing import Final

from engine.contract.errors import BrokerError
from engine.transport.base import Transport

RETRY_SECONDS: Final = 0.1
log = logging.getLogger("shardline.decoder")


class Outbox:
    """Publishes what is put in, one after the other. Bounded by the tokens of the running requests."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._messages: deque[tuple[str, bytes]] = deque()
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, subject: str, data: bytes) -> None:
        """Send this after everything put before."""
        self._messages.append((subject, data))
        self._empty.clear()
        self._filled.set()

    async def drained(self) -> None:
        """Return once everything put so far is with the broker client."""
        await self._empty.wait()

    async def run(self) -> None:
        """Send for ever."""
        while True:
            await self._filled.wait()
            while self._messages:
                await self._send(*self._messages[0])
                self._messages.popleft()
            self._filled.clear()
            self._empty.set()

    async def _send(self, subject: str, data: bytes) -> None:
        while True:
            try:
                await self._transport.publish(subject, data)
            except BrokerError as error:
                if len(data) > self._transport.max_payload:
                    log.error("dropped an event of %d bytes on %s: %s", len(data), subject, error)
                    return
                await asyncio.sleep(RETRY_SECONDS)  # the broker is away; nothing signals its return to us
            else:
                return
