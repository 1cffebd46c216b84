"""What does the gateway add to the time between tokens? 64 streams through it and by the client library, in turns.

Everything is on this machine's two cores: stages, decoder, broker, gateway and the clients, so what the gateway
computes is taken from the stages. The HTTP client only looks for events; the client library decodes its own.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import orjson
from rich.console import Console
from rich.table import Table

from bench.fleet import pipeline
from bench.load import prompts_for
from bench.pipeline import LAYERS, TEMPLATE
from bench.record import RESULTS, Record, ratio
from engine.client.api import Shardline
from engine.contract.prompt import TokenEvent
from engine.local.model import demo_split
from engine.local.processes import Processes

STREAMS = 64
ADDS = 1.10  # times at most
OUT = RESULTS / "gateway.jsonl"
Ask = Callable[[str], Awaitable[list[float]]]  # a prompt: when each of its events came


class Gateways:
    """A gateway beside a pipeline."""

    def __init__(self) -> None:
        self.url = ""

    async def start(self, processes: Processes, broker: str) -> None:
        command = [sys.executable, "-m", "engine.gateway.cli", "--nats", broker, "--port", "0"]
        child = await processes.start("gateway", command)
        self.url = (await child.wait_for_line("ready gateway at ")).removeprefix("ready gateway at ")


def by_library(client: Shardline, tokens: int) -> Ask:
    async def ask(prompt: str) -> list[float]:
        times: list[float] = []
        async for event in client.stream(prompt=prompt, max_tokens=tokens, ignore_eos=True, draft="none"):
            if isinstance(event, TokenEvent):
                times.append(time.perf_counter())
        return times

    return ask


def by_http(url: str, model: str, tokens: int) -> Ask:
    parts = urlsplit(url)

    async def ask(prompt: str) -> list[float]:
        fields = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "draft": "none"}
        body = orjson.dumps({**fields, "stream": True})
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        times: list[float] = []
        while (line := await reader.readline()) != b"data: [DONE]\n":
            assert line and b'"error"' not in line, line
            if line.startswith(b"data: "):
                times.append(time.perf_counter())
        writer.close()
        return times[:-1]  # the last one only says why it ended

    return ask


async def between(ask: Ask, prompts: list[str]) -> float:
    """Milliseconds between two events of a stream, of all streams the median."""
    async with asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(ask(prompt)) for prompt in prompts]
    found = [stream.result() for stream in streams]
    return statistics.median((times[-1] - times[0]) / (len(times) - 1) for times in found) * 1e3


async def measure(profile: str, rounds: int, tokens: int) -> Table:
    shards = await demo_split(2, print, layers=LAYERS)
    samples: dict[str, list[float]] = {"library": [], "gateway": []}
    gateways = Gateways()
    prompts = prompts_for(STREAMS, TEMPLATE)
    async with pipeline(shards, profile, beside=gateways.start) as (transport, subjects):
        sides = {
            "library": by_library(Shardline.over(transport, subjects), tokens),
            "gateway": by_http(gateways.url, subjects.model, tokens),
        }
        for number in range(-1, rounds):  # the first one warms up
            for side in sorted(sides, reverse=number % 2 == 0):
                took = await between(sides[side], prompts)
                if number >= 0:
                    samples[side].append(took)
            print(f"gateway, {profile}: round {number + 1} of {rounds} done", file=sys.stderr)
    for side, values in samples.items():
        params = {"side": side, "streams": STREAMS, "tokens": tokens, "profile": profile}
        Record(name="gateway.between_tokens", params=params, unit="ms", samples=values).append_to(OUT)
    middle, least, most = ratio(samples["gateway"], samples["library"])
    table = Table(
        "client library", "gateway", "ratio", "range", "wanted", title=f"{STREAMS} streams, profile {profile}"
    )
    medians = [f"{statistics.median(samples[side]):.1f} ms" for side in ("library", "gateway")]
    table.add_row(*medians, f"{middle:.3f}", f"{least:.3f} to {most:.3f}", f"< {ADDS:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--profiles", nargs="*", default=["fast"])
    options = parser.parse_args()
    for profile in options.profiles:
        Console(width=140).print(asyncio.run(measure(profile, options.rounds, options.tokens)))


if __name__ == "__main__":
    main()
