"""What does it cost to pass a step on? Through the broker, against a bare TCP relay, by what the message carries.

A message goes to another process and comes back: to the broker and from there to us, as from one stage to the next; or
to a relay that does nothing but send the same bytes back. Both on loopback, in turns. Beside it what our own frames
cost: their encoding and decoding. What is carried: the activations of a step in float32 (as we do) and float16, the
tokens that the last stage answers with (as we do), its 10 likeliest with their logits, all its logits.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.record import RESULTS, Record
from engine.contract.ids import Epoch, Incarnation, StepNumber
from engine.contract.messages import Step
from engine.local.broker import start_broker
from engine.local.processes import Processes
from engine.transport.nats import connect
from engine.wire.frame import decode, encode
from stages.chain import make_rows

VOCABULARY = 49_152
TURNS = 300
WARM = 20
RELAY = """
import asyncio, socket
async def serve(reader, writer):
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := await reader.read(1 << 20):
        writer.write(data)
        await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
OUT = RESULTS / "wire.jsonl"


def contents(rows: int, hidden: int) -> dict[str, bytes]:
    """Bytes of a message by what it carries."""
    table = make_rows([(i, 500, 1, 0, 1) for i in range(rows)], 16, 32)
    noise = np.random.default_rng(0).standard_normal((rows, hidden), np.float32)
    step = encode(Step(epoch=Epoch(1), number=StepNumber(1), incarnation=Incarnation(1), rows=table, value=noise))
    return {
        "activations, float32": step,
        "activations, float16": step[: -noise.nbytes // 2],
        "tokens": bytes(64 + 4 * rows),
        "10 likeliest": bytes(64 + 80 * rows),
        "all logits": bytes(64 + 4 * VOCABULARY * rows),
    }


def coding(rows: int, hidden: int) -> list[float]:
    """Milliseconds to encode and decode a step."""
    table = make_rows([(i, 500, 1, 0, 1) for i in range(rows)], 16, 32)
    step = Step(
        epoch=Epoch(1),
        number=StepNumber(1),
        incarnation=Incarnation(1),
        rows=table,
        value=np.zeros((rows, hidden), np.float32),
    )
    samples: list[float] = []
    for _ in range(TURNS):
        began = time.perf_counter()
        decode(encode(step))
        samples.append((time.perf_counter() - began) * 1e3)
    return samples


async def rounds(ways: dict[str, Callable[[bytes], Awaitable[None]]], data: bytes) -> dict[str, list[float]]:
    """Milliseconds there and back, the ways in turns."""
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(-WARM, TURNS):
        for way, send in ways.items():
            began = time.perf_counter()
            await send(data)
            if turn >= 0:
                samples[way].append((time.perf_counter() - began) * 1e3)
    return samples


async def measure(shapes: list[tuple[int, int]]) -> Table:
    table = Table(
        "rows", "hidden", "carries", "bytes", "broker, ms", "p95", "bare TCP, ms", "broker more by", "coding, ms"
    )
    with tempfile.TemporaryDirectory() as home:
        async with Processes(Path(home) / "logs") as processes:
            url = await start_broker(processes, Path(home))
            relay = await asyncio.create_subprocess_exec("python", "-c", RELAY, stdout=asyncio.subprocess.PIPE)
            assert relay.stdout is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", int(await relay.stdout.readline()))
            async with connect(url, name="bench") as transport, transport.subscribe("bench.wire") as inbox:

                async def broker(data: bytes) -> None:
                    await transport.publish("bench.wire", data)
                    await inbox.get()

                async def tcp(data: bytes) -> None:
                    writer.write(data)
                    await reader.readexactly(len(data))

                for rows, hidden in shapes:
                    coded = coding(rows, hidden)
                    keep("coding", "step", rows, hidden, coded)
                    for what, data in contents(rows, hidden).items():
                        if len(data) > transport.max_payload:
                            table.add_row(str(rows), str(hidden), what, f"{len(data):,}", "above max_payload")
                            continue
                        found = await rounds({"broker": broker, "tcp": tcp}, data)
                        for way, samples in found.items():
                            keep(way, what, rows, hidden, samples)
                        middle = {way: statistics.median(samples) for way, samples in found.items()}
                        table.add_row(
                            str(rows), str(hidden), what, f"{len(data):,}",
                            f"{middle['broker']:.3f}", f"{np.percentile(found['broker'], 95):.3f}",
                            f"{middle['tcp']:.3f}", f"{middle['broker'] - middle['tcp']:.3f}",
                            f"{statistics.median(coded):.3f}" if what == "activations, float32" else "",
                        )  # fmt: skip
            writer.close()
            relay.terminate()
            await relay.wait()
    return table


def keep(way: str, what: str, rows: int, hidden: int, samples: list[float]) -> None:
    params = {"carries": what, "rows": rows, "hidden": hidden}
    Record(name=f"wire.{way}", params=params, unit="ms", samples=samples).append_to(OUT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--hidden", type=int, nargs="*", default=[576, 4096])
    options = parser.parse_args()
    shapes = [(rows, hidden) for hidden in options.hidden for rows in options.rows]
    Console(width=140).print(asyncio.run(measure(shapes)))


if __name__ == "__main__":
    main()
