"""The inbox that every transport uses: a bounded queue between a callback and a task."""

import asyncio
import time
from collections import deque

from engine.transport.base import Incoming


class QueueInbox:
    """See Inbox. `put` is cheap enough for a broker callback: everything else happens in the reader's task."""

    def __init__(self, limit: int, wake: asyncio.Event | None) -> None:
        self._limit = limit
        self._wake = wake
        self._messages: deque[Incoming] = deque()
        self._filled = asyncio.Event()
        self.dropped = 0

    @property
    def waiting(self) -> int:
        """See Inbox."""
        return len(self._messages)

    @property
    def oldest(self) -> float | None:
        """See Inbox."""
        return self._messages[0].arrived if self._messages else None

    def put(self, subject: str, data: bytes, reply: str = "", *, no_responder: bool = False) -> None:
        """A message arrived."""
        if len(self._messages) >= self._limit:
            self.dropped += 1
            return
        self._messages.append(Incoming(subject, data, reply, no_responder, time.monotonic()))
        self._filled.set()
        self.wake()

    def wake(self) -> None:
        """Something happened that a reader who waits for several things should look at."""
        if self._wake is not None:
            self._wake.set()

    def take(self) -> Incoming | None:
        """See Inbox."""
        return self._messages.popleft() if self._messages else None

    async def get(self) -> Incoming:
        """See Inbox."""
        while not self._messages:
            self._filled.clear()
            await self._filled.wait()
        return self._messages.popleft()
