"""A process's own /metrics: an HTTP server in a thread; figures are collected when somebody scrapes, not before."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import CancelledError
from typing import Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, start_http_server
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from engine.contract.errors import UsageError
from engine.monitoring.exposition import families
from engine.monitoring.metrics import Sample

SCRAPE_SECONDS: Final = 5.0  # for the event loop to answer; scrapers give up after 10 by default
Collect = Callable[[], Awaitable[Iterable[Sample]]]


def parse_address(text: str) -> tuple[str, int]:
    """PORT (on this machine only) or HOST:PORT; [HOST]:PORT for IPv6. Raises UsageError."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--metrics {text!r} is neither PORT nor HOST:PORT")
    return host or "127.0.0.1", int(port)


class _OnScrape(Collector):
    """Asks the event loop for the figures of this moment, from the server's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, collect: Collect) -> None:
        self._loop, self._collect = loop, collect

    def collect(self) -> Iterable[Family]:
        """See Collector. Nothing of ours when the process is stopping, or too busy to answer."""

        async def ask() -> Iterable[Sample]:
            return await self._collect()

        try:
            asked = asyncio.run_coroutine_threadsafe(ask(), self._loop)
            return families(asked.result(SCRAPE_SECONDS))
        except (TimeoutError, CancelledError):
            return []


class MetricsEndpoint:
    """Serves /metrics until told to stop."""

    def __init__(self, address: str, collect: Collect, *, announce: Callable[[str], None]) -> None:
        """`collect` runs in the event loop. Raises UsageError for an address that is none."""
        self._host, self._port = parse_address(address)
        self._collect, self._announce = collect, announce

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`. Raises UsageError when the port cannot be had."""
        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        registry.register(_OnScrape(asyncio.get_running_loop(), self._collect))
        try:
            server, thread = start_http_server(self._port, self._host, registry)
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise UsageError(f"cannot serve metrics at {where}: {error.strerror or error}") from error
        try:
            host = f"[{self._host}]" if ":" in self._host else self._host
            self._announce(f"metrics at http://{host}:{server.server_port}/metrics")
            await stop.wait()
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
