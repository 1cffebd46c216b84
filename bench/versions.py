"""Is this checkout faster than another one? Pipelines of both run side by side and answer in turns.

The machine's speed drifts by minutes, so two runs of one benchmark say little about two versions. Here both keep a
broker, two one-core workers and a decoder; whoever is not asked idles. Profile fast, no drafts.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.fleet import pipeline
from bench.load import prompts_for, run_users
from bench.pipeline import LAYERS, TEMPLATE
from bench.record import RESULTS, Record, commit, ratio
from engine.local.model import demo_split
from engine.transport.nats import NatsTransport
from engine.transport.subjects import Subjects

HERE = Path(__file__).parent.parent


async def measure(checkouts: Sequence[Path], users: Sequence[int], rounds: int, tokens: int) -> dict[int, list[Record]]:
    shards = await demo_split(2, print, layers=LAYERS)
    found: dict[int, list[Record]] = {}
    async with contextlib.AsyncExitStack() as pipelines:
        asked: list[tuple[NatsTransport, Subjects]] = []
        for checkout in checkouts:
            os.environ["PYTHONPATH"] = str(checkout)  # of the processes that start now
            asked.append(await pipelines.enter_async_context(pipeline(shards, "fast")))
        for count in users:
            speeds: list[list[float]] = [[] for _ in checkouts]
            for number in range(-1, rounds):  # the first one warms up
                order = list(enumerate(asked))
                for at, (transport, subjects) in order if number % 2 else reversed(order):
                    prompts = prompts_for(count, TEMPLATE)
                    result = await run_users(transport, subjects, prompts, tokens, draft="none")
                    if number >= 0:
                        speeds[at].append(result["tokens"] / result["seconds"])
            found[count] = [
                Record(
                    name="versions",
                    params={"users": count, "tokens": tokens, "version": commit(checkout)},
                    unit="tokens/s",
                    samples=samples,
                )
                for checkout, samples in zip(checkouts, speeds, strict=True)
            ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="Checkout of the other version.")
    parser.add_argument("--users", type=int, nargs="*", default=[1, 2, 16])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    checkouts = [options.other.resolve(), HERE]
    os.chdir("/")  # a child's working directory comes before PYTHONPATH
    table = Table("users", "other", "this", "ratio", "range")
    for users, (other, this) in asyncio.run(measure(checkouts, options.users, options.rounds, options.tokens)).items():
        for record in (other, this):
            record.append_to(RESULTS / "versions.jsonl")
        middle, least, most = ratio(this.samples, other.samples)
        before, now = (f"{statistics.median(r.samples):.1f} tok/s" for r in (other, this))
        table.add_row(str(users), before, now, f"{middle:.2f}", f"{least:.2f} to {most:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
