"""A gateway on a real socket before a pipeline of arithmetic shards in the same process."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI

from engine.gateway.config import GatewayConfig
from engine.gateway.server import GatewayService, open_socket
from engine.transport.memory import MemoryTransport
from tests.decoder.local_pipeline import Pipeline, pipeline


class Served:
    """The parts of a test, and clients for it."""

    def __init__(self, here: Pipeline, link: MemoryTransport, url: str) -> None:
        self.here, self.link, self.url = here, link, url
        self.clients: list[AsyncOpenAI] = []

    def client(self, key: str = "none") -> AsyncOpenAI:
        """The official one, without its retries: errors are what is looked at."""
        self.clients.append(AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0))
        return self.clients[-1]

    async def idle(self) -> None:
        """Return once the decoder has nothing to do."""
        await self.here.decoders[-1]._desk.finished()  # type: ignore[reportPrivateUsage]

    async def busy(self) -> None:
        """Return once something runs."""
        while not self.here.decoders[-1].running:  # noqa: ASYNC110  nothing signals it
            await asyncio.sleep(0)


@asynccontextmanager
async def gateway(here: Pipeline, **changes: Any) -> AsyncGenerator[Served]:
    """Before a pipeline that is there already, or not yet."""
    values: dict[str, Any] = {
        "nats": "",
        "deployment": "test",
        "models": ("model",),
        "host": "127.0.0.1",
        "port": 0,
        "api_keys": None,
        "max_open": 64,
        "max_body": 1 << 16,
        "patience": 60.0,
        "grace": 1.0,
        "json_logs": False,
    }
    config, stop, ready = GatewayConfig(**(values | changes)), asyncio.Event(), asyncio.Event()
    with open_socket(config.host, 0) as opened:
        link = MemoryTransport(here.broker)
        service = GatewayService(link, opened, config, announce=lambda _: ready.set(), tracer=here.tracer)
        running = asyncio.create_task(service.run(stop))
        await asyncio.wait({running, asyncio.create_task(ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
        served = Served(here, link, f"http://127.0.0.1:{opened.getsockname()[1]}")
        yield served
        for client in served.clients:
            await client.close()
        stop.set()
        await running


def serve(
    test: Callable[[Served], Awaitable[None]], *, gateway_options: dict[str, Any] | None = None, **settings: Any
) -> None:
    """Run a test with a whole pipeline and a gateway."""

    async def main() -> None:
        async with pipeline(**settings) as here, gateway(here, **(gateway_options or {})) as served:
            await test(served)

    asyncio.run(main())
