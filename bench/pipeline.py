"""Do two one-core workers over NATS beat the whole model on one core, for 1, 2 and 16 users?

Paired: in every round the whole model (openvino-genai, pinned to core 0, one thread) and the pipeline (stage 0 on
core 0, stage 1 on core 1, one thread each, layers 18 + 12 because the head is a fifth of the work) answer the same
prompts, one after the other, while the other side idles. Broker and decoder share the two cores with the stages. Same
KV precision on both sides (f16 in profile fast, f32 in exact).
"""

import argparse
import asyncio
import os
import statistics
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.calm import Calm
from bench.fleet import pipeline, whole
from bench.load import prompts_for, run_users
from bench.model import ir_folder
from bench.record import RESULTS, Record, ratio
from engine.local.model import demo_split

LAYERS = "18,12"
TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PRECISION = {"fast": "f16", "exact": "f32"}
USERS = (1, 2, 16)
GATES = {("llm", 1): 0.85, ("llm", 2): 1.6, ("batching", 16): 1.45}


Samples = dict[tuple[str, int], list[tuple[float, bool]]]  # tokens/s, and whether the machine was quiet


async def measure(profile: str, rounds: int, tokens: int) -> list[dict[str, Any]]:
    folder = await asyncio.to_thread(ir_folder)
    shards = await demo_split(2, print, layers=LAYERS)
    samples: Samples = {}
    with (
        Calm((0, 1)) as calm,
        whole("llm", folder, PRECISION[profile]) as llm,
        whole("batching", folder, PRECISION[profile]) as batching,
    ):
        async with pipeline(shards, profile) as (transport, subjects):
            for round_number in range(-1, rounds):  # the first one warms up
                for users in USERS:
                    prompts = prompts_for(users, TEMPLATE)
                    sides: dict[str, tuple[float, bool]] = {}
                    before = calm.now()
                    result = await run_users(transport, subjects, prompts, tokens, draft="none")
                    sides["pipeline"] = (result["tokens"] / result["seconds"], calm.now() and before)
                    for side, run in [("batching", batching)] + ([("llm", llm)] if users == 1 else []):
                        before = calm.now()
                        result = await asyncio.to_thread(run, prompts, tokens)
                        sides[side] = (result["tokens"] / result["seconds"], calm.now() and before)
                    if round_number >= 0:
                        for side, sample in sides.items():
                            samples.setdefault((side, users), []).append(sample)
                print(f"{profile}: round {round_number + 1} of {rounds} done", file=sys.stderr)
    params = {"profile": profile, "tokens": tokens, "layers": LAYERS, "cores": os.cpu_count()}
    for (side, users), values in samples.items():
        Record(
            name=f"pipeline.{side}",
            params={**params, "users": users, "quiet": [quiet for _, quiet in values]},
            unit="tokens/s",
            samples=[speed for speed, _ in values],
        ).append_to(RESULTS / "pipeline.jsonl")
    return rows(profile, samples)


def rows(profile: str, samples: Samples) -> list[dict[str, Any]]:
    """One row per comparison; over the quiet pairs when there are three of them, else over all."""
    found = []
    for users in USERS:
        for side in ("llm", "batching"):
            theirs = samples.get((side, 1 if side == "llm" else users))
            if theirs is None:
                continue
            pairs = list(zip(samples["pipeline", users], theirs, strict=True))
            quiet = [(a[0], b[0]) for a, b in pairs if a[1] and b[1]]
            used = quiet if len(quiet) >= 3 else [(a[0], b[0]) for a, b in pairs]
            middle, least, most = ratio([a for a, _ in used], [b for _, b in used])
            gate = GATES.get((side, users)) if profile == "fast" else None
            found.append(
                {"profile": profile, "users": users, "against": side, "ours": statistics.median(a for a, _ in used)}
                | {"theirs": statistics.median(b for _, b in used), "ratio": middle, "range": (least, most)}
                | {"gate": gate, "quiet": f"{len(quiet)} of {len(pairs)}"}
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--profiles", nargs="*", default=["fast", "exact"])
    options = parser.parse_args()
    table = Table("profile", "users", "pipeline", "whole model on one core", "ratio", "range", "quiet", "wanted")
    for profile in options.profiles:
        for row in asyncio.run(measure(profile, options.rounds, options.tokens)):
            name = {"llm": "LLMPipeline, one user", "batching": "ContinuousBatchingPipeline"}[row["against"]]
            table.add_row(
                profile,
                str(row["users"]),
                f"{row['ours']:.1f} tok/s",
                f"{row['theirs']:.1f} tok/s {name}",
                f"{row['ratio']:.2f}",
                f"{row['range'][0]:.2f} to {row['range'][1]:.2f}",
                row["quiet"],
                f"≥ {row['gate']}" if row["gate"] else "",
            )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
