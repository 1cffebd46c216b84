"""What does cutting alone cost? The model in 1, 2, 3 and 4 stages, one after the other in one process, no broker.

One thread, pinned to core 0, profile fast, one sequence, decode speed after the first token; the splits in turns.
(paper, tab:shard_stages)
"""

import argparse
import asyncio
import os
import statistics

from rich.console import Console
from rich.table import Table

from bench.calm import Calm
from bench.load import PROMPTS
from bench.parity import decode_speed
from bench.record import RESULTS, Record, ratio
from engine.contract.manifest import load_manifest
from engine.decoder.tokenizer import load_tokenizer
from engine.local.model import demo_split
from stages.chain import Chain
from stages.settings import RunnerOptions

STAGES = (1, 2, 3, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    os.sched_setaffinity(0, {0})
    folders = {stages: asyncio.run(demo_split(stages, print)) for stages in STAGES}
    tokenizer = load_tokenizer(folders[1], load_manifest(folders[1]))
    prompt = list(tokenizer.encode(PROMPTS[0], special=False))
    fast = RunnerOptions(kind="paged", profile="fast", threads=1)
    chains = {stages: Chain.open(folder, fast) for stages, folder in folders.items()}
    samples: dict[int, list[float]] = {stages: [] for stages in STAGES}
    quiet: list[bool] = []
    with Calm((0,)) as calm:
        for turn in range(-1, options.rounds):  # the first one warms up
            before = calm.now()
            for stages, chain in chains.items():
                speed = decode_speed(chain, prompt, options.tokens)
                if turn >= 0:
                    samples[stages].append(speed)
            if turn >= 0:
                quiet.append(calm.now() and before)
    table = Table("stages", "tokens/s", "relative to one", "range", title=f"{sum(quiet)} of {len(quiet)} rounds quiet")
    for stages, speeds in samples.items():
        params = {"stages": stages, "tokens": options.tokens, "quiet": quiet}
        Record(name="splits", params=params, unit="tokens/s", samples=speeds).append_to(RESULTS / "splits.jsonl")
        middle, least, most = ratio(speeds, samples[1])
        table.add_row(str(stages), f"{statistics.median(speeds):.1f}", f"{middle:.2f}", f"{least:.2f} to {most:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
