"""A connection of somebody who falls behind: its inboxes hold few messages, what they do not hold is dropped."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from engine.transport.base import Inbox, Transport


class NarrowTransport:
    """Another transport in all else."""

    def __init__(self, transport: Transport, limit: int) -> None:
        self._transport, self._limit = transport, limit
        self.inboxes: list[Inbox] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @asynccontextmanager
    async def subscribe(self, subject: str, **options: Any) -> AsyncGenerator[Inbox]:
        async with self._transport.subscribe(subject, **{**options, "limit": self._limit}) as inbox:
            self.inboxes.append(inbox)
            yield inbox

    @property
    def dropped(self) -> int:
        return sum(inbox.dropped for inbox in self.inboxes)
