"""Gathers what the report is made of; each part by itself, so that one that fails hides no other."""

import asyncio
import platform
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from engine.contract.control import HEARTBEAT_SECONDS, StageHeartbeat, from_json
from engine.contract.errors import BrokerError, DeviceError, FrameError
from engine.contract.facts import Broker
from engine.doctor import report
from engine.doctor.report import Finding
from engine.local.broker import find_server
from engine.local.folders import cache_folder
from engine.transport.base import Transport
from engine.transport.nats import BROKER_SECONDS, connect
from engine.transport.subjects import Subjects

PACKAGES: Final = ("shardline", "openvino", "openvino-genai", "nats-py", "transformers", "numpy")
LISTEN_SECONDS: Final = 2.2 * HEARTBEAT_SECONDS  # two of each worker, and a bit
LOCAL: Final = ("127.0.0.1", "localhost", "::1")
PORTS: Final = {"broker's monitoring": 8222, "gateway": 8000}


async def examine(nats: str, deployment: str) -> list[Finding]:
    """Everything, in the order it is read. Raises UsageError when `nats` is not an address."""
    found = report.version_findings(versions(), sys.version_info[:2])
    broker, workers, problem = await _broker(nats, deployment)
    found += report.broker_findings(broker) if broker else []
    found += [problem] if problem else []
    ports = {use: (port, listens(port)) for use, port in local_ports(nats).items()}
    found += report.port_findings(ports, broker_here=broker is not None)
    memory, folder = await asyncio.to_thread(_memory), cache_folder()
    found += [report.memory_finding(*memory), report.disk_finding(str(folder), disk_free(folder))]
    return found + await asyncio.to_thread(_devices, [w for w in workers if w.host == platform.node()])


async def _broker(nats: str, deployment: str) -> tuple[Broker | None, list[StageHeartbeat], Finding | None]:
    try:
        async with connect(nats, name="doctor", wait=BROKER_SECONDS) as transport:
            return await transport.facts(), await _workers(transport, deployment), None
    except BrokerError as error:
        todo = "nats-server -c deploy/nats/single.conf, or --nats with the address of a broker"
        return None, [], Finding("broker", "problem", str(error), todo)


async def _workers(transport: Transport, deployment: str) -> list[StageHeartbeat]:
    """The workers that are heard, the oldest first."""
    workers: dict[int, StageHeartbeat] = {}
    async with transport.subscribe(Subjects.all_heartbeats(deployment)) as inbox:
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_SECONDS):
                while True:
                    message = await inbox.get()
                    with suppress(FrameError):  # a decoder's
                        beat = from_json(StageHeartbeat, message.data)
                        workers[beat.incarnation] = beat
    return [workers[key] for key in sorted(workers)]


def _devices(workers: list[StageHeartbeat]) -> list[Finding]:
    try:
        from stages.devices import list_devices  # noqa: PLC0415  an OpenVINO that cannot be loaded is a finding

        return report.device_findings(list_devices(), workers)
    except (ImportError, DeviceError) as error:
        return [
            Finding("devices", "problem", f"OpenVINO does not work: {error}", "pip install --force-reinstall openvino")
        ]


def _memory() -> tuple[int, int]:
    from stages.memory import measure_memory  # noqa: PLC0415  with the devices

    memory = measure_memory()
    return memory.total, memory.free


def versions() -> dict[str, str]:
    """Of what we stand on; "" where it is missing."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    found["nats-server"] = ""
    with suppress(BrokerError, OSError, subprocess.SubprocessError):
        told = subprocess.run([str(find_server()), "--version"], capture_output=True, text=True, timeout=5, check=True)
        found["nats-server"] = told.stdout.strip().rpartition(" ")[2].removeprefix("v")
    return found


def local_ports(nats: str) -> dict[str, int]:
    """The ports of this machine that matter, by use; the broker's only when it is to be here."""
    first = nats.split(",", maxsplit=1)[0]
    parts = urlsplit(first if "://" in first else f"nats://{first}")
    return {"broker": parts.port or 4222, **PORTS} if parts.hostname in LOCAL else {"gateway": PORTS["gateway"]}


def listens(port: int) -> bool:
    """Whether something takes connections at a port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def disk_free(folder: Path) -> int:
    """Bytes free where a folder is or would be."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free
