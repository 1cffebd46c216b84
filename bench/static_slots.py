"""What do packed slots of a static shard bring, with the same columns shared among more of them? (paper, tab:packed)

One process, one thread, the uncut demo model on the CPU: no NPU was here, so only the ratios can be held beside the
paper's. Every sample is one step in which each slot decodes one token behind half of its context; kinds are measured in
turns. Then the first token of a prompt whose beginning another slot holds, computed again and copied.
"""

import argparse
import asyncio
import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.record import RESULTS, Record, ratio
from engine.contract.copies import SlotCopy
from engine.contract.manifest import load_manifest
from engine.contract.static import StaticLimits
from engine.local.model import demo_split
from stages.chain import Chain, make_rows
from stages.loader import load_runner
from stages.settings import RunnerOptions

COLUMNS = 1024
PAPER = {1: 1.0, 4: 1.65, 8: 3.11, 16: 6.01}  # times the tokens per second of one slot; a 1.5B model on an NPU
PREFIX, OWN = 192, 8  # tokens of a prompt: shared, and its own
TOKENS = np.random.default_rng(0).integers(0, 40_000, COLUMNS).astype(np.int32)


def opened(shards: Path, limits: StaticLimits) -> Chain:
    manifest = replace(load_manifest(shards), static=limits)
    return Chain([load_runner(shards, manifest, 0, RunnerOptions(kind="static", threads=1))])


def decode(chain: Chain, slots: int) -> float:
    """Milliseconds of a step in which every slot gets a token, at half of its context."""
    at = COLUMNS // slots // 2
    rows = make_rows([(slot, at, 1, 0, 1) for slot in range(slots)], 0)
    began = time.perf_counter()
    chain.infer(rows, TOKENS[:slots])
    return (time.perf_counter() - began) * 1e3


def packed(shards: Path, rounds: int) -> dict[int, list[float]]:
    """Samples per number of slots, round i of each side by side."""
    chains: dict[int, Chain] = {}
    for slots in PAPER:
        limits = StaticLimits(context=COLUMNS // slots, slots=slots, verify_tokens=1, prefill_chunk=32)
        chain = chains[slots] = opened(shards, limits)
        for slot in range(slots):
            half = COLUMNS // slots // 2
            chain.infer(make_rows([(slot, 0, half, 0, 0)], 0), TOKENS[:half])
        decode(chain, slots)
    found: dict[int, list[float]] = {slots: [] for slots in chains}
    for _ in range(rounds):
        for slots, chain in chains.items():
            found[slots].append(decode(chain, slots))
    for chain in chains.values():
        chain.runners[0].close()
    return found


def prefix(shards: Path, rounds: int) -> dict[str, list[float]]:
    """Milliseconds to the first token of a prompt of PREFIX + OWN tokens."""
    limits = StaticLimits(context=256, slots=4, verify_tokens=4, prefill_chunk=128)
    found: dict[str, list[float]] = {"computed": [], "copied": []}
    with opened(shards, limits) as chain:
        whole = make_rows([(1, 0, PREFIX + OWN, PREFIX + OWN - 1, 1)], 0)
        rest = make_rows([(1, PREFIX, OWN, OWN - 1, 1)], 0)
        chain.infer(make_rows([(0, 0, PREFIX, 0, 0)], 0), TOKENS[:PREFIX])
        for i in range(rounds + 1):
            began = time.perf_counter()
            chain.infer(whole, TOKENS[: PREFIX + OWN])
            middle = time.perf_counter()
            chain.copy_slots([SlotCopy(0, 1, PREFIX)])
            chain.infer(rest, TOKENS[PREFIX : PREFIX + OWN])
            if i:
                found["computed"].append((middle - began) * 1e3)
                found["copied"].append((time.perf_counter() - middle) * 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    shards = asyncio.run(demo_split(1, print))
    found = packed(shards, options.rounds)
    results = RESULTS / "static_slots.jsonl"
    table = Table("slots", "context of each", "ms a step, median", "tokens/s, times one slot", "in the paper (NPU)")
    for slots, samples in found.items():
        Record(name="static_slots", params={"slots": slots, "columns": COLUMNS}, unit="ms", samples=samples).append_to(
            results
        )
        middle, least, most = ratio([slots * one for one in found[1]], samples)
        speed = f"{middle:.2f} ({least:.2f} to {most:.2f})"
        table.add_row(
            str(slots), str(COLUMNS // slots), f"{statistics.median(samples):.1f}", speed, f"{PAPER[slots]:.2f}"
        )
    Console(width=110).print(table)
    first = prefix(shards, max(options.rounds // 4, 3))
    for way, samples in first.items():
        Record(
            name="static_prefix", params={"way": way, "shared": PREFIX, "own": OWN}, unit="ms", samples=samples
        ).append_to(results)
        print(f"first token, {PREFIX} of {PREFIX + OWN} tokens shared, {way}: {statistics.median(samples):.0f} ms")


if __name__ == "__main__":
    main()
