"""A TCP proxy on loopback that can freeze, cut, edit and record what goes through it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
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
        broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", self._port)
        link = Link(writer, broker_writer)
        link.flowing.set()
        self.links.append(link)
        for pump in (self._up(link, reader), self._down(link, broker_reader)):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

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
