"""A pipeline of real processes that several tests ask in turn: starting one costs as much as many answers."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from engine.local.pipeline import LocalPipeline, local_pipeline
from engine.transport.nats import NatsTransport, connect
from engine.transport.subjects import Subjects

T = TypeVar("T")


class Running:
    """The processes, and the event loop that watches them."""

    def __init__(self, runner: asyncio.Runner, pipeline: LocalPipeline) -> None:
        self._runner, self.pipeline = runner, pipeline

    def do(self, work: Callable[[NatsTransport, Subjects], Awaitable[T]], *, seconds: float = 600) -> T:
        """Run something with a connection of its own: between tests the loop stands still, brokers drop that."""

        async def bounded() -> T:
            async with asyncio.timeout(seconds), connect(self.pipeline.url, name="test") as transport:
                return await work(transport, Subjects("default", self.pipeline.slug))

        return self._runner.run(bounded())


@contextmanager
def running(
    shards: Path, home: Path, *, stage_options: tuple[str, ...] = (), decoder_options: tuple[str, ...] = ()
) -> Generator[Running]:
    """A pipeline of these shards, ready; ended on leaving."""

    async def start(stack: AsyncExitStack) -> LocalPipeline:
        whole = local_pipeline(shards, home, print, stage_options=stage_options, decoder_options=decoder_options)
        async with asyncio.timeout(120):
            return await stack.enter_async_context(whole)

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            yield Running(runner, runner.run(start(stack)))
        finally:
            runner.run(stack.aclose())
