"""A TCP proxy on loopback that can freeze, cut, edit and record what goes through it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

Edit = Callable[[bytes], bytes]  # b"" drops a chunk, chunk + chunk doubles it


@dataclass(eq=False)
class Link:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    flowing: asyncio.Event = field(default_factory=asyncio.Event)
    sent: bytearray = field(default_factory=bytearray)  # what the client has sent


class Proxy:
    """Between a client and the broker at `port`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = ""
        self.links: list[Link] = []
        self.to_client: Edit = bytes
        self.to_broker: Edit = bytes
        self.silent = False  # new connections are taken and never answered
        self.unanswered: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()  # each done once its client has left
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def last(self) -> Link:
        """The newest connection."""
        return self.links[-1]

    def freeze(self) -> None:
        """Nothing goes through the connections of now any more; they stay open. New ones work."""
        for link in self.links:
            link.flowing.clear()

    def thaw(self) -> None:
        """Everything goes through again, what has waited first."""
        for link in self.links:
            link.flowing.set()

    def inject(self, data: bytes) -> None:
        """Send bytes to the client as if they came from the broker."""
        self.last.client.write(data)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client has connected."""
        if self.silent:
            self._start(self._ignore(reader, writer), self.unanswered.put_nowait)
            return
        broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", self._port)
        link = Link(writer, broker_writer)
        link.flowing.set()
        self.links.append(link)
        self._start(self._up(link, reader))
        self._start(self._down(link, broker_reader))

    def _start(self, work: Coroutine[Any, Any, None], tell: Callable[[asyncio.Task[None]], None] | None = None) -> None:
        task = asyncio.create_task(work)
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)
        if tell:
            tell(task)

    async def _ignore(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                await reader.read()
        finally:
            writer.transport.abort()

    async def _up(self, link: Link, reader: asyncio.StreamReader) -> None:
        while chunk := await self._next(link, reader):
            link.sent += chunk
            link.broker.write(self.to_broker(chunk))
        link.broker.close()

    async def _down(self, link: Link, reader: asyncio.StreamReader) -> None:
        while chunk := await self._next(link, reader):
            link.client.write(self.to_client(chunk))
        link.client.close()

    async def _next(self, link: Link, reader: asyncio.StreamReader) -> bytes:
        await link.flowing.wait()
        try:
            chunk = await reader.read(1 << 16)
        except OSError:
            chunk = b""
        await link.flowing.wait()
        return chunk

    def cut(self) -> None:
        """End the newest connection."""
        self.last.client.transport.abort()
        self.last.broker.transport.abort()

    async def close(self) -> None:
        """End every connection."""
        for task in self._pumps:
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for link in self.links:
            link.client.transport.abort()
            link.broker.transport.abort()


@asynccontextmanager
async def proxy_to(url: str) -> AsyncGenerator[Proxy]:
    """A proxy in front of the broker at `url`."""
    port = urlsplit(url).port
    assert port is not None
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
