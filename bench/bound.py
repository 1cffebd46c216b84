"""How fast could two groups on two cores be? Times of bare runners, no broker, no decoder.

    python -m bench.bound PROFILE SPLIT WHOLE ROWS…

Pinned to one core with one thread. Prints {rows: {"whole": seconds, "slowest": seconds}}: a step of the whole model
with so many rows, and one of the slowest of two stages with half of them. Two groups pass each other without a gap at
best, so `whole / (2 * slowest)` bounds what a pipeline can be faster than the whole model with the same kernels.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

CONTEXT = 96
TURNS = 7


def main() -> None:
    os.sched_setaffinity(0, {0})
    from engine.contract.manifest import load_manifest  # noqa: PLC0415  after pinning
    from stages.chain import make_rows  # noqa: PLC0415
    from stages.loader import load_runner  # noqa: PLC0415
    from stages.runner import Runner  # noqa: PLC0415
    from stages.settings import MIB, RunnerOptions  # noqa: PLC0415

    name, split, whole, *counts = sys.argv[1:]
    profile = "exact" if name == "exact" else "fast"
    options = RunnerOptions(kind="paged", profile=profile, threads=1, kv_bytes=256 * MIB)
    stages = [load_runner(Path(split), load_manifest(Path(split)), i, options) for i in range(2)]
    uncut = load_runner(Path(whole), load_manifest(Path(whole)), 0, options)
    hidden = load_manifest(Path(split)).hidden_size
    block = uncut.capabilities.block_size
    length = 2 if profile == "exact" else 1

    def seconds(runner: Runner, rows: int, *, first: bool) -> float:
        plan = make_rows([(i, CONTEXT, length, 0, 1) for i in range(rows)], block, -(-(CONTEXT + length) // block))
        tokens = rows * length
        value = np.full(tokens, 9, np.int32) if first else np.zeros((tokens, hidden), np.float32)
        began = time.perf_counter()
        runner.infer(plan, value)
        return time.perf_counter() - began

    found: dict[str, dict[str, float]] = {}
    for rows in map(int, counts):
        half = -(-rows // 2)
        times: dict[str, list[float]] = {"whole": [], "0": [], "1": []}
        for turn in range(-2, TURNS):
            samples = {
                "whole": seconds(uncut, rows, first=True),
                "0": seconds(stages[0], half, first=True),
                "1": seconds(stages[1], half, first=False),
            }
            if turn >= 0:
                for name, sample in samples.items():
                    times[name].append(sample)
        middle = {name: statistics.median(samples) for name, samples in times.items()}
        found[str(rows)] = {"whole": middle["whole"], "slowest": max(middle["0"], middle["1"])}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
