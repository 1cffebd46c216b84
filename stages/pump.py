"""Steps from the inbox through the computing thread to where they go next, in arrival order."""

import asyncio
import logging
import time
from collections import deque
from concurrent.futures import Executor
from typing import Final

from engine.contract.errors import BrokerError, ErrorCode
from engine.transport.base import Inbox, Transport
from stages.core import Outgoing, StageCore
from stages.joining import Joined, Joining
from stages.load import Load

AHEAD: Final = 2  # steps handed to the thread: the one it computes and the one it takes up without asking us
log = logging.getLogger("shardline.stage")


class Pump:
    """Feeds one computing thread. The thread decodes, computes and encodes; the loop only moves bytes."""

    def __init__(self, transport: Transport, core: StageCore, thread: Executor, load: Load) -> None:
        self._transport, self._core, self._thread, self._load = transport, core, thread, load
        self._room = asyncio.Semaphore(AHEAD)
        self._handed: asyncio.Queue[asyncio.Future[Outgoing | None]] = asyncio.Queue(AHEAD)
        self._joining = Joining(core.last)
        self._joined: deque[Joined] = deque()
        self._unfinished = 0

    @property
    def waiting(self) -> int:
        """Steps handed to the thread beside the one it computes."""
        return max(self._unfinished - 1, 0)

    async def feed(self, inbox: Inbox) -> None:
        """Hand over what arrives, for ever. Cancelling it loses no message."""
        while True:
            await self._room.acquire()
            try:
                joined = await self._next(inbox)
            except asyncio.CancelledError:
                self._room.release()
                raise
            self._hand(joined)

    async def _next(self, inbox: Inbox) -> Joined:
        while not self._joined:
            self._joined.extend(self._joining.add(await inbox.get()))
        return self._joined.popleft()

    async def finish(self, inbox: Inbox) -> None:
        """What has arrived goes through; returns when its results are published. `feed` must have ended."""
        while (message := inbox.take()) is not None:
            self._joined.extend(self._joining.add(message))
        self._joined.extend(self._joining.rest())
        while self._joined:
            await self._room.acquire()
            self._hand(self._joined.popleft())
        await self._handed.join()

    def _hand(self, joined: Joined) -> None:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, self._core.handle, joined.data, joined.reply, joined.sides)
        self._handed.put_nowait(future)
        self._unfinished += 1

    async def publish(self) -> None:
        """Send on what the thread makes, for ever."""
        while True:
            outgoing = await (await self._handed.get())
            self._unfinished -= 1
            self._room.release()
            if outgoing is not None:
                if outgoing.computed:
                    self._load.add(time.monotonic(), outgoing.seconds)
                await self.send(outgoing)
            self._handed.task_done()

    async def send(self, outgoing: Outgoing) -> None:
        """Publish; what cannot be published is lost, and its decoder told if that can be."""
        try:
            await self._transport.publish(outgoing.subject, outgoing.data, reply=outgoing.reply)
        except BrokerError as error:
            log.warning("a step's result is lost: %s", error)
            failed = self._core.failure(ErrorCode.INTERNAL, str(error))
            if failed is not None and self._transport.connected and outgoing.computed:
                await self._report(failed)

    async def _report(self, failed: Outgoing) -> None:
        try:
            await self._transport.publish(failed.subject, failed.data)
        except BrokerError as error:
            log.warning("cannot report it either: %s", error)
