"""A broker as `shardline broker-config` sets it up, and connections of every role."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.local.broker import find_server
from engine.local.broker_config import BrokerPlan, write_broker
from engine.local.processes import Child, Processes
from engine.transport.address import BrokerUrl
from engine.transport.subjects import Subjects

MODEL = Subjects("default", "tiny")


@dataclass(frozen=True, slots=True)
class Guarded:
    """A running broker that asks for keys."""

    folder: Path
    url: str
    public: dict[str, str]  # keys by role
    server: Child

    def url_for(self, role: str, *, ca: Path | None = None) -> BrokerUrl:
        """How a role reaches it."""
        ca = ca or (self.folder / "tls" / "ca.pem")
        return BrokerUrl(self.url, credentials=self.folder / "keys" / f"{role}.nk", tls_ca=ca if ca.exists() else None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def guarded(
    folder: Path, *, models: tuple[Subjects, ...] = (MODEL,), stages: int = 2, tls: bool = False, days: int = 397
) -> AsyncGenerator[Guarded]:
    """Write it, start it, end it."""
    plan = BrokerPlan(out=folder, models=models, stages=stages, tls=tls, days=days, port=free_port())
    public = write_broker(plan)
    without_monitoring(folder / "nats.conf")
    async with Processes(folder / "logs") as processes:
        server = await start_server(processes, folder, "nats.conf")
        yield Guarded(folder, f"{'tls' if tls else 'nats'}://127.0.0.1:{plan.port}", public, server)


def without_monitoring(config: Path) -> None:
    """Its port is fixed, and tests run beside each other."""
    lines = config.read_text().splitlines()
    config.write_text("\n".join(line for line in lines if not line.startswith("http:")) + "\n")


async def start_server(processes: Processes, folder: Path, config: str) -> Child:
    """A nats-server started in its folder, as the first line of its configuration says; it may not be ready yet."""
    return await processes.start(config, ["/bin/sh", "-c", f'cd "{folder}" && exec "{find_server()}" -c {config}'])


def run(main: Callable[[], Coroutine[Any, Any, None]], *, seconds: float = 60) -> None:
    """Run a test's coroutine, bounded."""

    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await main()

    asyncio.run(bounded())
