import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from engine.local.broker import embedded_broker
from engine.transport.base import Transport
from engine.transport.memory import MemoryBroker, MemoryTransport
from engine.transport.nats import connect

WithTwo = Callable[[Callable[[Transport, Transport], Awaitable[None]]], None]


@asynccontextmanager
async def memory() -> AsyncGenerator[tuple[Transport, Transport]]:
    broker = MemoryBroker()
    yield MemoryTransport(broker), MemoryTransport(broker)


@asynccontextmanager
async def nats() -> AsyncGenerator[tuple[Transport, Transport]]:
    async with embedded_broker() as url, connect(url, name="one") as one, connect(url, name="two") as two:
        yield one, two


@pytest.fixture(params=[pytest.param(memory, id="memory"), pytest.param(nats, id="nats", marks=pytest.mark.broker)])
def with_two(request: pytest.FixtureRequest) -> WithTwo:
    """Runs a test with two transports on one broker."""

    def run(test: Callable[[Transport, Transport], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(30), request.param() as (one, two):
                await test(one, two)

        asyncio.run(main())

    return run
