"""What does rejecting drafts cost: masked on a stateful shard, trimmed from its state, overwritten on a paged one?

One process, one thread, the uncut demo model. Every sample is one verify row of four tokens whose last two are then
rejected: the next row starts two positions earlier. `accepted` rows, of which nothing is rejected, are the base.
"""

import argparse
import asyncio
import statistics
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.record import RESULTS, Record
from engine.local.model import demo_split
from stages.chain import Chain, make_rows
from stages.runner import RunnerKind
from stages.settings import RunnerOptions
from stages.slot import SPARE, Spare

ROW, REJECTED, SLOT = 4, 2, 0
NEVER = 1 << 30
WAYS: tuple[tuple[RunnerKind, str, Spare], ...] = (
    ("stateful", "mask", Spare(NEVER)),
    ("stateful", "trim every time", Spare(0, per_tokens=NEVER)),
    ("paged", "row starts earlier", SPARE),
)


def samples(chain: Chain, context: int, rejected: int, count: int) -> list[float]:
    """Milliseconds of `count` verify rows behind a prompt of `context` tokens."""
    blocks = -(-(context + ROW * (count + 1)) // 16)
    tokens = np.random.default_rng(0).integers(0, 40_000, context + ROW * (count + 1)).astype(np.int32)
    size = chain.block_size
    chain.infer(make_rows([(SLOT, 0, context, context - 1, 1)], size, blocks), tokens[:context])
    at, found = context, []
    for _ in range(count):
        rows = make_rows([(SLOT, at, ROW, 0, ROW)], size, blocks)
        began = time.perf_counter()
        chain.infer(rows, tokens[at : at + ROW])
        found.append((time.perf_counter() - began) * 1e3)
        at += ROW - rejected
    return found


def measure(shards: Path, context: int, count: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for kind, way, spare in WAYS:
        base = f"{kind}: nothing rejected"
        options = RunnerOptions(kind=kind, profile="fast", threads=1, slots=1, spare=spare)
        with Chain.open(shards, options) as chain:
            samples(chain, context, 0, 3)  # warm
            if base not in found:
                found[base] = samples(chain, context, 0, count)
            found[f"{kind}: {way}"] = samples(chain, context, REJECTED, count)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=25)
    options = parser.parse_args()
    shards = asyncio.run(demo_split(1, print))
    table = Table("context", "way", "ms a row, median", "against nothing rejected")
    for context in (72, 200, 1000):
        found = measure(shards, context, options.count)
        for way, values in found.items():
            params = {"context": context, "way": way, "row": ROW, "rejected": REJECTED}
            Record(name="rewind", params=params, unit="ms", samples=values).append_to(RESULTS / "rewind.jsonl")
            middle = statistics.median(values)
            base = statistics.median(found[f"{way.split(':')[0]}: nothing rejected"])
            table.add_row(str(context), way, f"{middle:.1f}", f"{middle - base:+.1f} ms")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
