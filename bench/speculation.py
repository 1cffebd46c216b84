"""What does speculation bring: per kind of prompt and number of drafts on one node, and to several users on two?

One node: one worker with one thread; the same running pipeline answers each prompt without drafts and with 1 to 5 of
them, with as many as pay, and with lookups too; so everything but the drafts is equal. Two nodes: two one-core workers
(layers 18 + 12), 1 to 8 users, against the same without drafts and against the whole model in openvino-genai on one
core. The decoder and its draft model share the cores with the workers.
"""

import argparse
import asyncio
import statistics
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.calm import Calm
from bench.fleet import pipeline, whole
from bench.load import KINDS, prompts_for, run_users
from bench.model import ir_folder
from bench.record import RESULTS, Record, ratio
from engine.local.model import demo_draft, demo_split

TEMPLATE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
OFF: dict[str, Any] = {"draft": "none"}
SETTINGS: dict[str, dict[str, Any]] = {
    "off": OFF,
    **{f"K={k}": {"draft": "model", "draft_tokens": k} for k in (1, 2, 3, 5)},
    "adaptive": {"draft": "model"},
    "adaptive + lookup": {"draft": "auto"},
}
USERS = (1, 2, 4, 8)
Speeds = dict[tuple[str, str], list[float]]  # (row, setting) -> decode tokens/s, one per round


async def one_node(rounds: int, tokens: int) -> tuple[Speeds, dict[tuple[str, str], float], list[bool]]:
    """Speeds, acceptance, and whether the machine was quiet around each round."""
    shards = await demo_split(1, print)
    draft = await demo_draft(shards, print)
    speeds: Speeds = {}
    drafted: dict[tuple[str, str], list[int]] = {}
    quiet: list[bool] = []
    with Calm((0,)) as calm:
        async with pipeline(shards, "fast", "--draft", str(draft)) as (transport, subjects):
            for round_number in range(-1, rounds):  # the first one warms up and lets the costs be learnt
                before = calm.now()
                for kind, prompt in zip(KINDS, prompts_for(len(KINDS), TEMPLATE), strict=True):
                    for setting, fields in SETTINGS.items():
                        count = tokens if round_number >= 0 else tokens // 2
                        result = await run_users(transport, subjects, [prompt], count, **fields)
                        if round_number >= 0:
                            speeds.setdefault((kind, setting), []).append(result["decode"][0])
                            seen = drafted.setdefault((kind, setting), [0, 0])
                            seen[0] += result["accepted"]
                            seen[1] += result["drafted"]
                if round_number >= 0:
                    quiet.append(calm.now() and before)
                print(f"one node: round {round_number + 1} of {rounds} done", file=sys.stderr)
    return speeds, {key: a / d if d else 0.0 for key, (a, d) in drafted.items()}, quiet


async def two_nodes(rounds: int, tokens: int) -> tuple[Speeds, list[bool]]:
    """All users' tokens per second, prefill included; row "whole" is the whole model's single user."""
    folder = await asyncio.to_thread(ir_folder)
    shards = await demo_split(2, print, layers="18,12")
    draft = await demo_draft(shards, print)
    speeds: Speeds = {}
    quiet: list[bool] = []
    with Calm((0, 1)) as calm, whole("llm", folder, "f16") as llm:
        async with pipeline(shards, "fast", "--draft", str(draft)) as (transport, subjects):
            for round_number in range(-1, rounds):
                before = calm.now()
                single = await asyncio.to_thread(llm, prompts_for(2, TEMPLATE), tokens)
                if round_number >= 0:
                    speeds.setdefault(("whole", ""), []).append(single["tokens"] / single["seconds"])
                for users in USERS:
                    for setting, fields in {"off": OFF, "on": {"draft": "auto"}}.items():
                        prompts = prompts_for(max(users, 2), TEMPLATE)
                        groups = [prompts[i : i + users] for i in range(0, len(prompts), users)]
                        results = [await run_users(transport, subjects, group, tokens, **fields) for group in groups]
                        speed = sum(r["tokens"] for r in results) / sum(r["seconds"] for r in results)
                        if round_number >= 0:
                            speeds.setdefault((str(users), setting), []).append(speed)
                if round_number >= 0:
                    quiet.append(calm.now() and before)
                print(f"two nodes: round {round_number + 1} of {rounds} done", file=sys.stderr)
    return speeds, quiet


def show_one_node(speeds: Speeds, acceptance: dict[tuple[str, str], float], quiet: list[bool]) -> Table:
    names = [name for name in SETTINGS if name != "off"]
    table = Table("kind", "off, tok/s", *names, title=f"one node; {sum(quiet)} of {len(quiet)} rounds quiet")
    means: dict[str, list[float]] = {}
    for kind in KINDS:
        off = speeds[kind, "off"]
        cells = []
        for name in names:
            middle, _, _ = ratio(speeds[kind, name], off)
            means.setdefault(name, []).append(middle)
            cells.append(f"{middle:.2f}x ({acceptance[kind, name]:.0%})")
        table.add_row(kind, f"{statistics.median(off):.1f}", *cells)
    table.add_section()
    table.add_row("mean", "", *(f"{statistics.mean(means[name]):.2f}x" for name in names))
    table.add_row("least", "", *(f"{min(means[name]):.2f}x" for name in names))
    return table


def show_two_nodes(speeds: Speeds, quiet: list[bool]) -> Table:
    table = Table(
        "users", "off, tok/s", "on, tok/s", "on / off", "on / whole model, one user", "range",
        title=f"two one-core workers; {sum(quiet)} of {len(quiet)} rounds quiet",
    )  # fmt: skip
    single = speeds["whole", ""]
    for users in map(str, USERS):
        off, on = speeds[users, "off"], speeds[users, "on"]
        against, least, most = ratio(on, single)
        gain = f"{ratio(on, off)[0]:.2f}x"
        cells = (f"{statistics.median(off):.1f}", f"{statistics.median(on):.1f}", gain)
        table.add_row(users, *cells, f"{against:.2f}x", f"{least:.2f} to {most:.2f}")
    return table


def record(name: str, speeds: Speeds, tokens: int, quiet: list[bool]) -> None:
    for (row, setting), samples in speeds.items():
        params = {"row": row, "setting": setting, "tokens": tokens, "quiet": quiet, "profile": "fast"}
        Record(name=name, params=params, unit="tokens/s", samples=samples).append_to(RESULTS / "speculation.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--parts", nargs="*", default=["one", "two"])
    options = parser.parse_args()
    console = Console(width=150)
    if "one" in options.parts:
        speeds, acceptance, quiet = asyncio.run(one_node(options.rounds, options.tokens))
        record("speculation.one_node", speeds, options.tokens, quiet)
        console.print(show_one_node(speeds, acceptance, quiet))
    if "two" in options.parts:
        speeds, quiet = asyncio.run(two_nodes(options.rounds, options.tokens))
        record("speculation.two_nodes", speeds, options.tokens, quiet)
        console.print(show_two_nodes(speeds, quiet))


if __name__ == "__main__":
    main()
