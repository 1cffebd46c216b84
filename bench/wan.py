"""What do groups, speculation and windows sent ahead bring over slow links?

Two one-core workers and a decoder, each connected to the broker through a proxy that delays every byte (bench/delay.py;
bytes overlap in flight): a hop from process to process costs 0, 10, 50 or 100 ms, a tenth of it as jitter. Naive is
one user, one step in flight, no drafts. Groups are two users. The full stack drafts for both of them, and keeps two
windows of each in flight.
"""

import argparse
import asyncio
import statistics
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.delay import Delay
from bench.fleet import pipeline
from bench.load import prompts_for, run_users
from bench.record import RESULTS, Record, ratio
from bench.speculation import OFF, TEMPLATE
from engine.local.model import demo_draft, demo_split

HOPS_MS = (0, 10, 50, 100)
JITTER_SHARE = 0.1
AUTO: dict[str, Any] = {"draft": "auto"}
WAYS: dict[str, tuple[int, int, dict[str, Any]]] = {  # steps in flight, users, fields
    "naive": (2, 1, OFF),
    "groups": (2, 2, OFF),
    "speculation": (2, 2, AUTO),
    "one user, speculation": (2, 1, AUTO),
    "speculation, ahead": (4, 2, AUTO),
}
Speeds = dict[str, list[float]]


async def measure(hop_ms: int, rounds: int, tokens: int) -> Speeds:
    """Tokens per second of all users together, one sample per way and round."""
    shards = await demo_split(2, print, layers="18,12")
    draft = await demo_draft(shards, print)
    delay = Delay(hop_ms / 2e3 * (1 - JITTER_SHARE / 2), hop_ms / 2e3 * JITTER_SHARE)
    speeds: Speeds = {}
    for depth in sorted({depth for depth, _, _ in WAYS.values()}):
        options = ("--draft", str(draft), "--steps-in-flight", str(depth))
        async with pipeline(shards, "fast", *options, delay=delay) as (transport, subjects):
            for round_number in range(-1, rounds):  # the first one warms up
                for way, (steps, users, fields) in WAYS.items():
                    if steps != depth:
                        continue
                    prompts = prompts_for(2, TEMPLATE)
                    groups = [prompts[i : i + users] for i in range(0, 2, users)]
                    results = [await run_users(transport, subjects, group, tokens, **fields) for group in groups]
                    if round_number >= 0:
                        speed = sum(r["tokens"] for r in results) / sum(r["seconds"] for r in results)
                        speeds.setdefault(way, []).append(speed)
                print(f"{hop_ms} ms, {depth} in flight: round {round_number + 1} of {rounds} done", file=sys.stderr)
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--hops-ms", type=int, nargs="*", default=list(HOPS_MS))
    options = parser.parse_args()
    table = Table("per hop", *WAYS)
    for hop_ms in options.hops_ms:
        speeds = asyncio.run(measure(hop_ms, options.rounds, options.tokens))
        cells = []
        for way, samples in speeds.items():
            params = {"hop_ms": hop_ms, "way": way, "tokens": options.tokens, "profile": "fast"}
            Record(name="wan", params=params, unit="tokens/s", samples=samples).append_to(RESULTS / "wan.jsonl")
        for way in WAYS:
            gain = ratio(speeds[way], speeds["naive"])[0]
            cells.append(f"{statistics.median(speeds[way]):.1f} tok/s ({gain:.2f}x)")
        table.add_row(f"{hop_ms} ms", *cells)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
