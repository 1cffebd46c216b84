"""The first connection: a broker that is late, missing, silent, closed to us, or no broker at all."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.contract.errors import BrokerError, UsageError
from engine.local.broker import embedded_broker, find_server
from engine.local.processes import Processes
from engine.transport.address import shown
from engine.transport.nats import connect
from tests.transport.proxy import proxy_to


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(bounded())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def server_with(folder: Path, config: str) -> AsyncGenerator[str]:
    """A bare nats-server; yields its URL at once, it may still be starting."""
    port = free_port()
    path = folder / "own.conf"
    path.write_text(f'host: "127.0.0.1"\nport: {port}\n{config}')
    async with Processes(folder) as processes:
        await processes.start("nats-server", [str(find_server()), "-c", str(path)])
        yield f"nats://127.0.0.1:{port}"


def test_a_missing_broker_is_named_with_its_cure() -> None:
    async def main() -> None:
        url = f"nats://127.0.0.1:{free_port()}"
        with pytest.raises(BrokerError, match=f"no broker at {url}: start nats-server"):
            async with connect(url, name="test", wait=0.2):
                pass

    run(main)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nats://h:4222", "nats://h:4222"),
        ("nats://me:pa@ss/word@h:4222", "nats://***@h:4222"),
        ("tls://token@h", "tls://***@h"),
        ("me:secret@h", "***@h"),
        ("nats://a:b@one,nats://two,c:d@three", "nats://***@one,nats://two,***@three"),
    ],
)
def test_messages_name_a_broker_without_the_password(url: str, said: str) -> None:
    assert shown(url) == said


def test_a_missing_broker_is_named_without_the_password() -> None:
    async def main() -> None:
        with pytest.raises(BrokerError, match=r"no broker at nats://\*\*\*@127.0.0.1"):
            async with connect(f"nats://me:secret@127.0.0.1:{free_port()}", name="test", wait=0.2):
                pass

    run(main)


def test_a_port_that_says_nothing_is_no_broker() -> None:
    async def main() -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            with pytest.raises(BrokerError, match="no broker"):
                async with connect(f"nats://127.0.0.1:{silent.getsockname()[1]}", name="test", wait=0.2):
                    pass

    run(main)


@pytest.mark.parametrize("url", ["nats://127.0.0.1:port", "nats://", "", "nats://h:99999", "nats://h:0"])
def test_what_is_not_an_address_is_wrong_usage(url: str) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="not the address"):
            async with connect(url, name="test", wait=0.2):
                pass

    run(main)


@pytest.mark.broker
def test_a_broker_that_comes_later_is_waited_for_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.transport.nats_connect.PATIENCE_SECONDS", 0.05)
    said = asyncio.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waiting for the broker" in record.getMessage():
                said.set()

    async def main() -> None:
        port = free_port()
        async with asyncio.TaskGroup() as tasks:

            async def use() -> None:
                async with connect(f"nats://127.0.0.1:{port}", name="test") as transport:
                    await transport.barrier()

            using = tasks.create_task(use())
            await said.wait()
            async with embedded_broker(port=port):
                await using

    heard = Heard()
    logger = logging.getLogger("shardline.transport")
    logger.addHandler(heard)
    try:
        with caplog.at_level(logging.INFO, "shardline.transport"):
            run(main)
    finally:
        logger.removeHandler(heard)
    assert sum("waiting for the broker" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.broker
def test_a_broker_that_wants_a_password_refuses_us_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with server_with(tmp_path, "authorization { user: a, password: b }") as url:
            with pytest.raises(BrokerError, match=r"refuses us.*[Aa]uthorization"):
                async with connect(url, name="test"):
                    pass

    run(main)


@pytest.mark.broker
@pytest.mark.parametrize("what", ["queue", "lease"])
def test_a_broker_without_jetstream_is_named_with_its_cure(tmp_path: Path, what: str) -> None:
    async def main() -> None:
        async with server_with(tmp_path, "") as url, connect(url, name="test") as transport:
            with pytest.raises(BrokerError, match="has no JetStream: start it with 'nats-server -js'"):
                if what == "queue":
                    await transport.work_queue(stream="Q", subject="q", dead_stream="D", dead_subject="d")
                else:
                    await transport.lease(bucket="B", key="k")

    run(main)


@pytest.mark.broker
def test_a_connection_is_closed_when_its_context_is_left() -> None:
    async def main() -> None:
        async with embedded_broker() as url, proxy_to(url) as proxy:
            async with connect(proxy.url, name="test") as transport:
                await transport.publish("a", b"the last word")
            await proxy.last.client.wait_closed()
            assert b"the last word" in proxy.last.sent

    run(main)
