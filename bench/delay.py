"""A slow link: a TCP proxy that delays every byte by a constant and a jitter, without limiting how many are under way.

    python -m bench.delay --to 127.0.0.1:4222 --delay-ms 25 --jitter-ms 2      prints: ready 127.0.0.1:PORT

The reader stamps what it reads with the time it may leave and reads on; a writer lets it go at that time. So bytes
overlap in flight as on a real link, order is kept, and only `MOST_IN_FLIGHT` bounds the sender. A process whose
connection to the broker goes through it sees the delay in each direction: a hop from process to process costs two.
"""

import argparse
import asyncio
import random
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

CHUNK: Final = 1 << 16
MOST_IN_FLIGHT: Final = 64 << 20  # bytes per direction


@dataclass(frozen=True, slots=True)
class Delay:
    """Of one direction, in seconds."""

    constant: float
    jitter: float = 0.0  # added: uniform from 0 to this
    seed: int = 0


class _Line:
    """One direction of one connection."""

    def __init__(self, delay: Delay, seed: int) -> None:
        self._delay, self._random = delay, random.Random(seed)
        self._chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MOST_IN_FLIGHT // CHUNK)
        self._latest = 0.0

    async def read(self, source: asyncio.StreamReader) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            data = await source.read(CHUNK)
            due = clock() + self._delay.constant + self._random.random() * self._delay.jitter
            self._latest = max(self._latest, due)  # nothing overtakes
            await self._chunks.put((self._latest, data))
            if not data:
                return

    async def write(self, sink: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, data = await self._chunks.get()
            if (wait := due - clock()) > 0:
                await asyncio.sleep(wait)
            if not data:
                if sink.can_write_eof():
                    sink.write_eof()
                return
            sink.write(data)
            await sink.drain()


async def _carry(
    client: asyncio.StreamWriter, reader: asyncio.StreamReader, host: str, port: int, delay: Delay
) -> None:
    try:
        far_reader, far = await asyncio.open_connection(host, port)
    except OSError:
        client.transport.abort()
        return
    for writer in (client, far):
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    there, back = _Line(delay, delay.seed), _Line(delay, delay.seed + 1)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(there.read(reader))
            tasks.create_task(there.write(far))
            tasks.create_task(back.read(far_reader))
            tasks.create_task(back.write(client))
    except* OSError:  # one side was cut: so is the other
        client.transport.abort()
        far.transport.abort()
    finally:
        for writer in (client, far):
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def delayed(host: str, port: int, delay: Delay) -> AsyncGenerator[int]:
    """Listen on a free loopback port and carry every connection to host:port; yields the port."""
    carried: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        carried.add(task)
        try:
            await _carry(writer, reader, host, port, delay)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            carried.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(carried):
            task.cancel()
        await asyncio.gather(*carried, return_exceptions=True)


async def _serve(to: str, delay: Delay) -> None:
    host, _, port = to.rpartition(":")
    async with delayed(host, int(port), delay) as own:
        print(f"ready 127.0.0.1:{own}", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", required=True, help="host:port of the broker")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="per direction")
    parser.add_argument("--jitter-ms", type=float, default=0.0, help="per direction, added")
    options = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(options.to, Delay(options.delay_ms / 1e3, options.jitter_ms / 1e3)))


if __name__ == "__main__":
    main()
