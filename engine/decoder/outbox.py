"""Events on their way out, in order; kept while the broker is away, because clients must not miss one."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from engine.contract.errors import BrokerError, OvertakenError
from engine.contract.ids import RequestId
from engine.transport.base import EventLog, Transport
from engine.transport.durable import EVENT_MARGIN

RETRY_SECONDS: Final = 0.1
log = logging.getLogger("shardline.decoder")


class Lane:
    """Events of one durable prompt on their way into the log, each behind the one before."""

    def __init__(self, request: RequestId, prompt: str, after: int) -> None:
        """`prompt`: its key; `after`: place of the last event in the log."""
        self.request, self.prompt, self.after = request, prompt, after
        self.messages: deque[bytes] = deque()
        self.filled = asyncio.Event()
        self.opened = False  # an event was put
        self.closing = False  # its final event was put
        self.ended = asyncio.Event()
        self.overtaken = False  # another decoder answers this prompt now


class Outbox:
    """Publishes what is put in, one after the other. Bounded by the tokens of the running requests."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.overtaken: Callable[[Lane], None] = lambda _: None  # called when another decoder went on with an answer
        self._messages: deque[tuple[str, bytes]] = deque()
        self._new: deque[Lane] = deque()
        self._waits = False  # the log takes no events at present
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, subject: str, data: bytes) -> None:
        """Send this after everything put before."""
        self._messages.append((subject, data))
        self._empty.clear()
        self._filled.set()

    def put_logged(self, lane: Lane, data: bytes, *, final: bool) -> None:
        """Add this to the log after everything put into the lane before."""
        if not lane.opened:
            lane.opened = True
            self._new.append(lane)
            self._filled.set()
        lane.messages.append(data)
        lane.closing = final
        lane.filled.set()

    async def drained(self) -> None:
        """Return once everything put so far, but for the log, is with the broker client."""
        await self._empty.wait()

    async def run(self, events: EventLog) -> None:
        """Send for ever."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._filled.wait()
                while self._new:
                    tasks.create_task(self._carry(self._new.popleft(), events))
                while self._messages:
                    await self._send(*self._messages[0])
                    self._messages.popleft()
                if not self._new:
                    self._filled.clear()
                self._empty.set()

    async def _carry(self, lane: Lane, events: EventLog) -> None:
        """Add a lane's events to the log until its end, or until somebody else has added one."""
        try:
            while lane.messages or not lane.closing:
                await lane.filled.wait()
                lane.filled.clear()
                while lane.messages:
                    await self._append(lane, events)
        except OvertakenError as error:
            log.warning("request %s is given up here: %s", lane.request, error, extra={"request": lane.request})
            lane.overtaken = True
            self.overtaken(lane)
        lane.ended.set()

    async def _append(self, lane: Lane, events: EventLog) -> None:
        data = lane.messages[0]
        while True:
            try:
                lane.after = await events.append(lane.request, data, prompt=lane.prompt, after=lane.after)
            except OvertakenError:
                raise
            except BrokerError as error:
                if self._too_large(data, error):
                    break
                if not self._waits:
                    log.warning("events wait until they can be stored: %s", error)
                self._waits = True
                await asyncio.sleep(RETRY_SECONDS)  # the broker is away; nothing signals its return to us
            else:
                self._waits = False
                break
        lane.messages.popleft()

    async def _send(self, subject: str, data: bytes) -> None:
        while True:
            try:
                await self._transport.publish(subject, data)
            except BrokerError as error:
                if self._too_large(data, error):
                    return
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def _too_large(self, data: bytes, error: BrokerError) -> bool:
        if len(data) <= self._transport.max_payload - EVENT_MARGIN:
            return False
        log.error("dropped an event of %d bytes: %s", len(data), error)
        return True
