"""The slow link that the wide-area bench measures through."""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from bench.delay import Delay, delayed

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.write(b"end")
    await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def link(delay: Delay, serve: Serve = echo) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection through a slow link to a server."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with asyncio.timeout(20), delayed("127.0.0.1", server.sockets[0].getsockname()[1], delay) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            await close(writer)
            server.close()


def test_order_is_kept_under_jitter_and_a_half_close_passes() -> None:
    async def run() -> None:
        async with link(Delay(0.001, 0.01)) as (reader, writer):
            sent = b"".join(struct.pack("I", i) for i in range(2000))
            for at in range(0, len(sent), 80):
                writer.write(sent[at : at + 80])
                await asyncio.sleep(0)
            writer.write_eof()
            assert await reader.read(-1) == sent + b"end"

    asyncio.run(run())


def test_bytes_are_late_by_the_delay_and_many_are_under_way_at_once() -> None:
    async def run() -> None:
        clock = asyncio.get_running_loop().time
        async with link(Delay(0.05)) as (reader, writer):
            began = clock()
            for i in range(100):
                writer.write(struct.pack("I", i))
                await asyncio.sleep(0)
            await reader.readexactly(400)
            assert 0.1 <= clock() - began < 2.0  # there and back once; a hundred one by one would take ten seconds

    asyncio.run(run())


def test_a_cut_connection_is_cut_on_the_other_side_too() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        end = writer.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def run() -> None:
        async with link(Delay(0.001), cut) as (reader, writer):
            writer.write(b"x")
            with pytest.raises(ConnectionError):
                assert await reader.read(-1) == b""
                raise ConnectionResetError

    asyncio.run(run())


def test_a_link_to_nobody_closes_its_clients() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        async with asyncio.timeout(20), delayed("127.0.0.1", port, Delay(0.0)) as own:
            reader, writer = await asyncio.open_connection("127.0.0.1", own)
            with pytest.raises(ConnectionError):
                assert await reader.read(-1) == b""
                raise ConnectionResetError
            await close(writer)

    asyncio.run(run())
