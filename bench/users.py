"""Many users on two one-core workers: throughput, smoothness, waiting, and what shared beginnings save.

- users: 1 to 32 users at once against ContinuousBatchingPipeline on one core, the same prompts in turns, same KV
  precision, no drafts; beside it what two groups could reach at best (bench/bound.py), and how busy the stages were.
- prompt: a prompt of 2,000 tokens arrives beside four streams; time between their tokens before and meanwhile.
- ttft: time to the first token by length of the prompt, nothing of it known.
- prefix: the same again, with all of it known but for the last tokens.
"""

import argparse
import asyncio
import contextlib
import json
import random
import re
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.fleet import pipeline, whole
from bench.load import prompts_for, run_users
from bench.model import ir_folder
from bench.pipeline import LAYERS, PRECISION, TEMPLATE
from bench.record import RESULTS, Record, ratio
from engine.client.client import Client
from engine.contract.manifest import load_manifest
from engine.contract.prompt import FinalEvent
from engine.decoder.tokenizer import load_tokenizer
from engine.local.model import demo_split
from engine.monitoring.depth import Collector
from engine.monitoring.health import bubble_shares

USERS = (1, 2, 4, 8, 16, 32)
GATES = {16: 1.6, 32: 1.75}
PROMPTS = (10, 100, 500, 1000, 2000)  # tokens
PREFIXES = (100, 500, 2000)
STREAMS = 4
LONG = 2000
OUT = RESULTS / "users.jsonl"
Samples = dict[tuple[str, int], list[float]]


def keep(name: str, unit: str, samples: Samples, **params: Any) -> None:
    for (what, size), values in samples.items():
        Record(
            name=f"users.{name}", params={"what": what, "size": size, **params}, unit=unit, samples=values
        ).append_to(OUT)


async def bound(profile: str, split: str, uncut: str) -> dict[int, float]:
    """What two groups could be faster than the whole model, by number of users."""
    command = [sys.executable, "-m", "bench.bound", profile, split, uncut, *map(str, USERS)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return {int(rows): t["whole"] / (2 * t["slowest"]) for rows, t in json.loads(out).items()}


async def measure_users(profile: str, rounds: int, tokens: int) -> Table:
    folder = await asyncio.to_thread(ir_folder)
    shards, uncut = await demo_split(2, print, layers=LAYERS), await demo_split(1, print)
    best = await bound(profile, str(shards), str(uncut))
    samples: Samples = {}
    bubbles: dict[int, list[list[float]]] = {}
    with whole("batching", folder, PRECISION[profile]) as batching:
        async with pipeline(shards, profile) as (transport, subjects):
            heard = Collector(transport, subjects)
            watching = asyncio.create_task(heard.listen())
            for number in range(-1, rounds):  # the first one warms up
                for users in USERS:
                    prompts = prompts_for(users, TEMPLATE)
                    theirs = await asyncio.to_thread(batching, prompts, tokens)
                    earlier = heard.heard(time.monotonic())
                    ours = await run_users(transport, subjects, prompts, tokens, draft="none")
                    await asyncio.sleep(1.1)  # the heartbeats that tell of it
                    if number >= 0:
                        shares = bubble_shares(earlier, heard.heard(time.monotonic()))
                        bubbles.setdefault(users, []).append([share or 0.0 for share in shares])
                        for side, result in (("pipeline", ours), ("batching", theirs)):
                            speed = result["tokens"] / result["seconds"]
                            samples.setdefault((side, users), []).append(speed)
                print(f"users, {profile}: round {number + 1} of {rounds} done", file=sys.stderr)
            watching.cancel()
    kept = {str(users): times for users, times in best.items()}
    keep("throughput", "tokens/s", samples, profile=profile, tokens=tokens, bound=kept)
    title = f"profile {profile}, {tokens} tokens an answer"
    table = Table("users", "pipeline", "one core", "ratio", "range", "bound", "busy", "bubbles", "wanted", title=title)
    for users in USERS:
        ours, theirs = samples["pipeline", users], samples["batching", users]
        middle, least, most = ratio(ours, theirs)
        idle = [statistics.median(stage) for stage in zip(*bubbles[users], strict=True)]
        table.add_row(
            str(users),
            f"{statistics.median(ours):.1f} tok/s",
            f"{statistics.median(theirs):.1f} tok/s",
            f"{middle:.2f}",
            f"{least:.2f} to {most:.2f}",
            f"{best[users]:.2f}",
            " ".join(f"{1 - share:.0%}" for share in idle),
            " ".join(f"{share:.0%}" for share in idle),
            f"≥ {GATES[users]}" if profile == "fast" and users in GATES else "",
        )
    return table


async def ask(client: Client, prompt: str, tokens: int) -> list[float]:
    """When each event of an answer came."""
    times: list[float] = []
    async for event in client.generate(prompt=prompt, max_tokens=tokens, ignore_eos=True, draft="none"):
        times.append(time.perf_counter())
        if isinstance(event, FinalEvent):
            assert event.error is None, event.error
    return times


class Prompts:
    """Texts of a given number of tokens that nobody has asked for before."""

    def __init__(self, shards: Path) -> None:
        tokenizer = load_tokenizer(shards, load_manifest(shards))
        texts = (tokenizer.decode([token]) for token in range(1000, 20_000))
        self._words = [text for text in texts if re.fullmatch(" [a-z]{3,9}", text)]  # one token each

    def any(self, length: int) -> str:
        return "".join(random.choices(self._words, k=length))


@contextlib.asynccontextmanager
async def asking() -> AsyncGenerator[tuple[Client, Prompts]]:
    """A client of two one-core workers in profile fast, and prompts for it."""
    shards = await demo_split(2, print, layers=LAYERS)
    prompts = await asyncio.to_thread(Prompts, shards)
    async with pipeline(shards, "fast") as (transport, subjects):
        yield Client(transport, subjects), prompts


async def measure_prompt(rounds: int) -> Table:
    samples: Samples = {}
    async with asking() as (client, prompts):
        for number in range(-1, rounds):
            async with asyncio.TaskGroup() as tasks:
                streams = [tasks.create_task(ask(client, prompts.any(30), 224)) for _ in range(STREAMS)]
                await asyncio.sleep(2.5)  # the load itself, not a wait for something
                began = time.perf_counter()
                times = await ask(client, prompts.any(LONG), 1)
                ended = times[0]
            gaps: dict[str, list[float]] = {"before": [], "meanwhile": []}
            for stream in streams:
                seen = stream.result()
                for earlier, later in pairwise(seen):
                    if began - 1.5 < earlier and later < began:
                        gaps["before"].append(later - earlier)
                    elif began < later and earlier < ended:
                        gaps["meanwhile"].append(later - earlier)
            if number >= 0:
                for name, found in gaps.items():
                    samples.setdefault((name, STREAMS), []).append(float(np.percentile(found, 95)) * 1e3)
                samples.setdefault(("first token of the prompt", LONG), []).append((ended - began) * 1e3)
            print(f"prompt: round {number + 1} of {rounds} done", file=sys.stderr)
    keep("prompt", "ms", samples, profile="fast")
    before, meanwhile = samples["before", STREAMS], samples["meanwhile", STREAMS]
    middle, least, most = ratio(meanwhile, before)
    table = Table("p95 between tokens before", "meanwhile", "ratio", "range", "prompt's first token", "wanted")
    table.title = f"a prompt of {LONG} tokens beside {STREAMS} streams"
    table.add_row(
        f"{statistics.median(before):.1f} ms",
        f"{statistics.median(meanwhile):.1f} ms",
        f"{middle:.2f}",
        f"{least:.2f} to {most:.2f}",
        f"{statistics.median(samples['first token of the prompt', LONG]):.0f} ms",
        "< 2",
    )
    return table


async def measure_ttft(rounds: int) -> Table:
    samples: Samples = {}
    async with asking() as (client, prompts):
        for number in range(-1, rounds):
            for length in sorted({*PROMPTS, *PREFIXES}):
                prompt = prompts.any(length)
                for what in ("cold", "warm"):
                    began = time.perf_counter()
                    times = await ask(client, prompt, 2)
                    if number >= 0:
                        samples.setdefault((what, length), []).append((times[0] - began) * 1e3)
            print(f"ttft: round {number + 1} of {rounds} done", file=sys.stderr)
    keep("ttft", "ms", samples, profile="fast")
    table = Table("prompt", "first token", "tokens/s read", "all known before", "times faster")
    table.title = "time to the first token, one user, profile fast"
    for length in sorted({*PROMPTS, *PREFIXES}):
        cold, warm = samples["cold", length], samples["warm", length]
        row = [f"{length} tokens", f"{statistics.median(cold):.0f} ms", f"{length / statistics.median(cold) * 1e3:.0f}"]
        faster = f"{ratio(cold, warm)[0]:.1f}"
        table.add_row(*row, *((f"{statistics.median(warm):.0f} ms", faster) if length in PREFIXES else ("", "")))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--profiles", nargs="*", default=["fast", "exact"])
    parser.add_argument("--parts", nargs="*", default=["users", "prompt", "ttft"])
    options = parser.parse_args()
    console = Console(width=140)
    if "users" in options.parts:
        for profile in options.profiles:
            console.print(asyncio.run(measure_users(profile, options.rounds, options.tokens)))
    if "prompt" in options.parts:
        console.print(asyncio.run(measure_prompt(options.rounds)))
    if "ttft" in options.parts:
        console.print(asyncio.run(measure_ttft(options.rounds)))


if __name__ == "__main__":
    main()
