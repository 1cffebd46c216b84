"""Other workers in the place of a pipeline's own, for a while."""

import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from engine.local.pipeline import LocalPipeline
from engine.local.processes import Child
from tests.faults.messages import Messages
from tests.transport.proxy import Proxy, proxy_to


@asynccontextmanager
async def another(pipeline: LocalPipeline, index: int, start: Callable[[], Awaitable[Child]]) -> AsyncGenerator[None]:
    """A worker started otherwise in the place of a stage; afterwards one as before."""
    await _replace(pipeline, index, start)
    try:
        yield
    finally:
        await _replace(pipeline, index, lambda: pipeline.start_stage(index, len(pipeline.stages)))


async def _replace(pipeline: LocalPipeline, index: int, start: Callable[[], Awaitable[Child]]) -> None:
    pipeline.stages[index].signal(signal.SIGTERM)
    await pipeline.stages[index].wait()
    pipeline.stages[index] = await start()
    await pipeline.stages[index].wait_for_line("ready")


@asynccontextmanager
async def behind_a_cable(pipeline: LocalPipeline, index: int) -> AsyncGenerator[tuple[Proxy, Messages]]:
    """A stage that reaches the broker through a proxy; what is done to messages for it."""
    async with proxy_to(pipeline.url) as cable:
        messages = Messages(f".stage.{index}.".encode())
        cable.to_client = messages
        away = replace(pipeline, url=cable.url)
        async with another(pipeline, index, lambda: away.start_stage(index, len(pipeline.stages))):
            yield cable, messages


async def start_crashing(pipeline: LocalPipeline, index: int, tokens: list[int]) -> Child:
    """A worker that dies as soon as it is given these tokens in a row."""
    command = [sys.executable, "-m", "tests.faults.crashing_stage", ",".join(map(str, tokens)), "--index", str(index)]
    command += ["--kv-memory", "512MiB", "--threads", "1", "--shards", str(pipeline.shards), "--nats", pipeline.url]
    return await pipeline.processes.start(f"stage-{index}", command)
