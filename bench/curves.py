"""What does a step cost each stage, by what is in it? Times of bare runners, no broker, no decoder.

    python -m bench.curves PROFILE SPLIT

Pinned to one core with one thread, the stages in turns. Prints a list, one object per stage: seconds by the number of
rows of one token each ("rows") and by the tokens of a single row ("tokens"), and seconds per position of context
("position"). bench/simulate.py plays fleets with them.
"""

import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from engine.decoder.core import PlannedStep

CONTEXT = 96
LONG = 512  # tokens before each of the rows that tell what context costs
LONG_ROWS = 8
ROWS = (1, 2, 4, 8, 16, 32)
TOKENS = (1, 2, 3, 4, 6, 8, 16, 64, 256)
VERIFY = 16  # tokens: longer rows are prompts
TURNS = 7


@dataclass(frozen=True)
class Curve:
    """Seconds of a stage's steps."""

    rows: dict[int, float]  # by number of rows, one token each
    tokens: dict[int, float]  # by tokens of one row
    position: float  # per position of context

    def seconds(self, step: PlannedStep) -> float:
        """Of a step with these rows; tokens beyond the first of each row cost what they cost in a single row."""
        rows, tokens = step.rows.count, len(step.tokens)
        context = int((step.rows.starts + step.rows.lengths).sum())
        more = _at(self.tokens, tokens) - _at(self.tokens, rows) if tokens > rows else 0.0
        return max(_at(self.rows, rows) + more + self.position * (context - rows * CONTEXT), 1e-6)

    def times(self, factor: float) -> "Curve":
        """A stage with that much more work in each step."""
        rows = {n: s * factor for n, s in self.rows.items()}
        tokens = {n: s * factor for n, s in self.tokens.items()}
        return Curve(rows, tokens, self.position * factor)


def _at(curve: dict[int, float], x: int) -> float:
    """On straight lines between what was measured, and on the last of them beyond."""
    xs, ys = list(curve), list(curve.values())
    if x > xs[-1]:
        return ys[-1] + (ys[-1] - ys[-2]) / (xs[-1] - xs[-2]) * (x - xs[-1])
    return float(np.interp(x, xs, ys))


def read_curves(text: str) -> list[Curve]:
    """What this script printed."""
    return [
        Curve({int(n): s for n, s in c["rows"].items()}, {int(n): s for n, s in c["tokens"].items()}, c["position"])
        for c in json.loads(text)
    ]


def main() -> None:
    os.sched_setaffinity(0, {0})
    from engine.contract.manifest import load_manifest  # noqa: PLC0415  after pinning
    from stages.chain import make_rows  # noqa: PLC0415
    from stages.loader import load_runner  # noqa: PLC0415
    from stages.settings import MIB, RunnerOptions  # noqa: PLC0415

    name, split = sys.argv[1:]
    folder = Path(split)
    manifest = load_manifest(folder)
    profile = "exact" if name == "exact" else "fast"
    options = RunnerOptions(kind="paged", profile=profile, threads=1, kv_bytes=512 * MIB)
    runners = [load_runner(folder, manifest, i, options) for i in range(len(manifest.stages))]
    block, least = runners[0].capabilities.block_size, 2 if profile == "exact" else 1
    kinds = [(rows, 1, CONTEXT) for rows in ROWS] + [(1, tokens, CONTEXT) for tokens in TOKENS]
    kinds += [(LONG_ROWS, 1, LONG)]
    found: list[dict[tuple[int, int, int], list[float]]] = [{} for _ in runners]
    for turn in range(-2, TURNS):
        for rows, tokens, context in kinds:
            length = max(tokens, least)
            picked = length if length <= VERIFY else 1  # a prompt's last token, or all of a window
            per_row = -(-(context + length) // block)
            plan = make_rows([(i, context, length, length - picked, picked) for i in range(rows)], block, per_row)
            for index, runner in enumerate(runners):
                value = np.full(rows * length, 9, np.int32)
                if index:
                    value = np.zeros((rows * length, manifest.hidden_size), np.float32)
                runner.infer(plan, value)  # the first of a shape prepares
                began = time.perf_counter()
                runner.infer(plan, value)
                if turn >= 0:
                    found[index].setdefault((rows, tokens, context), []).append(time.perf_counter() - began)
    curves: list[Curve] = []
    for samples in found:
        middle = {kind: statistics.median(times) for kind, times in samples.items()}
        added = middle[LONG_ROWS, 1, LONG] - middle[LONG_ROWS, 1, CONTEXT]
        curves.append(
            Curve(
                {rows: middle[rows, 1, CONTEXT] for rows in ROWS},
                {tokens: middle[1, tokens, CONTEXT] for tokens in TOKENS},
                max(added, 0.0) / (LONG_ROWS * (LONG - CONTEXT)),
            )
        )
    print(json.dumps([asdict(curve) for curve in curves]))


if __name__ == "__main__":
    main()
