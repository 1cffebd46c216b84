"""What becomes of long answers? 128 to 1,024 tokens, one user, with and without drafts; tokens/s, drafts, memory.

Two one-core workers and their decoder, profile fast; each length with and without drafts in turns. The demo model's
context is 2,048 tokens, of which prompt and drafts need some. Memory is that of all stages' and the decoder's
processes behind each answer. (paper: long generation)
"""

import argparse
import asyncio
import statistics
import sys
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.calm import Calm
from bench.fleet import pipeline
from bench.load import prompts_for, run_users
from bench.record import RESULTS, Record, ratio
from bench.speculation import OFF, TEMPLATE
from engine.local.model import demo_draft, demo_split

LENGTHS = (128, 512, 1024)
SETTINGS: dict[str, dict[str, Any]] = {"off": OFF, "on": {"draft": "auto"}}


def resident() -> float:
    """MiB of this process's children."""
    children = psutil.Process().children(recursive=True)
    return sum(child.memory_info().rss for child in children) / 2**20


async def measure(rounds: int) -> Table:
    shards = await demo_split(2, print, layers="18,12")
    draft = await demo_draft(shards, print)
    speeds: dict[tuple[int, str], list[float]] = {}
    memory: dict[tuple[int, str], list[float]] = {}
    drafts: dict[int, list[int]] = {length: [0, 0] for length in LENGTHS}
    quiet: list[bool] = []
    with Calm((0, 1)) as calm:
        async with pipeline(shards, "fast", "--draft", str(draft)) as (transport, subjects):
            prompts = prompts_for(rounds + 1, TEMPLATE)
            for number, prompt in enumerate(prompts):  # the first one warms up
                before = calm.now()
                for length in LENGTHS:
                    for setting, fields in SETTINGS.items():
                        result = await run_users(transport, subjects, [prompt], length if number else 64, **fields)
                        if number:
                            speeds.setdefault((length, setting), []).append(result["decode"][0])
                            memory.setdefault((length, setting), []).append(resident())
                            drafts[length][0] += result["accepted"]
                            drafts[length][1] += result["drafted"]
                if number:
                    quiet.append(calm.now() and before)
                print(f"long answers: round {number} of {rounds} done", file=sys.stderr)
    table = Table("tokens", "off, tok/s", "on, tok/s", "on / off", "range", "drafts that held", "memory, MiB")
    table.title = f"{sum(quiet)} of {len(quiet)} rounds quiet"
    for length in LENGTHS:
        for setting in SETTINGS:
            params = {"tokens": length, "setting": setting, "quiet": quiet, "accepted": drafts[length][0]}
            params |= {"drafted": drafts[length][1], "memory": memory[length, setting]}
            record = Record(name="longer", params=params, unit="tokens/s", samples=speeds[length, setting])
            record.append_to(RESULTS / "longer.jsonl")
        off, on = speeds[length, "off"], speeds[length, "on"]
        middle, least, most = ratio(on, off)
        held = drafts[length][0] / max(drafts[length][1], 1)
        table.add_row(
            f"{length:,}", f"{statistics.median(off):.1f}", f"{statistics.median(on):.1f}", f"{middle:.2f}",
            f"{least:.2f} to {most:.2f}", f"{held:.0%}", f"{statistics.median(memory[length, 'on']):.0f}",
        )  # fmt: skip
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    Console(width=120).print(asyncio.run(measure(options.rounds)))


if __name__ == "__main__":
    main()
