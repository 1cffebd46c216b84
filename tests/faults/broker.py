"""What tests do to a pipeline's broker, and how they learn that somebody has noticed."""

import asyncio
import signal
from urllib.parse import urlsplit

from engine.local.broker import start_broker
from engine.local.pipeline import LocalPipeline
from engine.local.processes import Child


def broker_of(pipeline: LocalPipeline) -> Child:
    """The newest one."""
    return next(child for child in reversed(pipeline.processes.children) if child.name == "nats-server")


async def end(broker: Child, number: signal.Signals = signal.SIGKILL) -> None:
    """End it in that way, and wait for it."""
    broker.signal(number)
    await broker.wait()


async def start_again(pipeline: LocalPipeline) -> None:
    """Another one in the same place with what the last one has stored."""
    await start_broker(pipeline.processes, broker_of(pipeline).log.parent.parent, urlsplit(pipeline.url).port or 0)


def mark(child: Child) -> int:
    """How long its log is now."""
    return child.log.stat().st_size


async def logged(child: Child, text: str, since: int = 0) -> None:
    """Return once it has written that into its log, behind `since`. Raises ChildProcessError when it ends before."""
    while text.encode() not in child.log.read_bytes()[since:]:  # a file tells nobody that it grows
        if child.returncode is not None:
            raise ChildProcessError(f"{child.name} ended with code {child.returncode}: {child.last_words()}")
        await asyncio.sleep(0.02)
