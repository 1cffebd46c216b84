"""/metrics over HTTP: collected when asked for, and only then."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from urllib.request import urlopen

import pytest

from engine.contract.errors import UsageError
from engine.monitoring.endpoint import MetricsEndpoint, parse_address
from engine.monitoring.metrics import CONNECTED, Sample


def with_endpoint(test: Callable[[str, list[int]], Awaitable[None]]) -> None:
    """Runs a test with the address of an endpoint, and how often it collected."""

    async def main() -> None:
        collected: list[int] = []
        said: asyncio.Queue[str] = asyncio.Queue()

        async def collect() -> list[Sample]:
            collected.append(1)
            return [Sample(CONNECTED, {}, float(len(collected)))]

        stop = asyncio.Event()
        async with asyncio.timeout(20):
            running = asyncio.create_task(MetricsEndpoint("0", collect, announce=said.put_nowait).run(stop))
            line = await said.get()
            await test(line.removeprefix("metrics at "), collected)
            stop.set()
            await running

    asyncio.run(main())


def read(url: str) -> str:
    with urlopen(url, timeout=10) as reply:
        return reply.read().decode()


def test_every_scrape_collects_once_and_nobody_else_does() -> None:
    async def test(url: str, collected: list[int]) -> None:
        assert not collected
        assert "shardline_monitor_connected 1.0" in await asyncio.to_thread(read, url)
        assert "shardline_monitor_connected 2.0" in await asyncio.to_thread(read, url)
        assert len(collected) == 2

    with_endpoint(test)


def test_the_process_itself_is_measured_too() -> None:
    async def test(url: str, _: list[int]) -> None:
        assert "process_cpu_seconds_total" in await asyncio.to_thread(read, url)

    with_endpoint(test)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9400", ("127.0.0.1", 9400)),
        (":9400", ("127.0.0.1", 9400)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:2", ("::1", 2)),
    ],
)
def test_a_port_alone_is_for_this_machine_only(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "localhost", "127.0.0.1:", "1:70000", "h:-1", "http://h:1/"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="neither PORT nor HOST:PORT"):
        parse_address(text)


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    async def main(port: int) -> None:
        async def collect() -> list[Sample]:
            return []

        await MetricsEndpoint(str(port), collect, announce=print).run(asyncio.Event())

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot serve metrics at 127.0.0.1:{port}"):
            asyncio.run(main(port))
