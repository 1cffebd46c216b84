"""Users who ask, read at their own pace, think and ask again; some lose patience, and sometimes many come together."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import cast

from engine.client.client import Client
from engine.contract.prompt import FinalEvent
from engine.transport.base import Transport
from engine.transport.subjects import Subjects
from tests.narrow import NarrowTransport
from tests.system.wishes import Wish

BURST, BURST_SECONDS = 16, 8.0  # so many together, and how long nobody else comes together then
SLOW_SECONDS, FEW = 0.15, 3  # a slow reader's pause, and how many events it keeps that it has not read


@dataclass(slots=True)
class Asked:
    """A wish that was sent, and how it ended."""

    wish: Wish
    sent: float
    final: FinalEvent | None = None


@dataclass
class Crowd:
    """The users: each asks, reads, thinks, and asks again."""

    transport: Transport
    subjects: Subjects
    stream: Iterator[Wish]
    asked: dict[str, Asked] = field(default_factory=dict[str, Asked])
    _numbers: Iterator[int] = field(default_factory=count)

    async def ask(self, wish: Wish) -> None:
        request = f"soak-{next(self._numbers)}"
        narrow = cast("Transport", NarrowTransport(self.transport, FEW))
        client = Client(narrow if wish.slow else self.transport, self.subjects)
        asked = self.asked[request] = Asked(wish, time.monotonic())
        ask = client.generate if wish.durable else client.generate_now
        async with cancelling(client, request, wish.cancel_after):
            async for event in ask(id=request, **wish.fields):
                if isinstance(event, FinalEvent):
                    asked.final = event
                elif wish.slow:
                    await asyncio.sleep(SLOW_SECONDS)

    async def user(self, until: float) -> None:
        while time.monotonic() < until:
            wish = next(self.stream)
            await asyncio.sleep(wish.think)
            await self.ask(wish)

    async def bursts(self, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.gather(*(self.ask(next(self.stream)) for _ in range(BURST)))
            await asyncio.sleep(BURST_SECONDS)


@asynccontextmanager
async def cancelling(client: Client, request: str, after: float | None) -> AsyncGenerator[None]:
    """A wish to stop it, so many seconds from now unless it has ended by then."""

    async def cancel(seconds: float) -> None:
        await asyncio.sleep(seconds)
        await client.cancel(request)

    task = asyncio.create_task(cancel(after)) if after is not None else None
    yield
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
