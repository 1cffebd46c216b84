"""Connecting to one model, and which one a deployment serves when the user does not say."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

from engine.contract.control import DecoderHeartbeat, from_json
from engine.contract.errors import FrameError, UsageError
from engine.transport.base import Transport
from engine.transport.nats import BROKER_SECONDS, connect
from engine.transport.subjects import Subjects

LISTEN_SECONDS: Final = 2.5  # two heartbeats and a bit
OTHERS_SECONDS: Final = 1.2  # within which every other decoder has spoken too


@asynccontextmanager
async def reach(nats: str, deployment: str, model: str, *, name: str) -> AsyncGenerator[tuple[Transport, Subjects]]:
    """A connection, called `name`, and the subjects of a model; "": the only one. Raises BrokerError, UsageError."""
    async with connect(nats, name=name, wait=BROKER_SECONDS) as transport:
        yield transport, Subjects(deployment, model or await find_model(transport, deployment))


async def find_model(transport: Transport, deployment: str) -> str:
    """The slug of the only model heard. Raises UsageError when there is none or a choice."""
    found: set[str] = set()
    async with transport.subscribe(f"shardline.{deployment}.*.heartbeat.decoder.*") as inbox:
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_SECONDS) as listening:
                while True:
                    message = await inbox.get()
                    with suppress(FrameError):
                        found.add(from_json(DecoderHeartbeat, message.data).model)
                        others_by = asyncio.get_running_loop().time() + OTHERS_SECONDS
                        listening.reschedule(min(listening.when() or others_by, others_by))
    if not found:
        raise UsageError(f"no decoder is heard in deployment {deployment!r}: start decoder-run, or name --model")
    if len(found) > 1:
        raise UsageError(f"several models are served ({', '.join(sorted(found))}): choose one with --model")
    return found.pop()
