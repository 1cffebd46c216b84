"""How fast would a fleet be that is not here? The real scheduler on stages that cost what was measured on one core.

Steps of the demo model's stages are timed by bench/curves.py; what a hop costs is what one user's tokens take longer
than the stages of the same pipeline (bench/users.py). Both are put into virtual time (bench/virtual.py).

- check: two stages with 1 to 32 users, and with slow links, beside what bench/users.py and bench/wan.py measured last.
- fleets: the model of 64 layers that this makes of the demo model's, in 2 to 64 stages, links of 0 to 100 ms, 1 user to
  four for each stage; relative to one core with the whole of it.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.curves import Curve, read_curves
from bench.record import RESULTS, Record, Results
from bench.virtual import DraftModel, Fleet, tokens_per_second

USERS = (1, 2, 4, 8, 16, 32)
CLOSE = 0.15  # a prediction this near is close
FLEETS = (2, 4, 8, 16, 32, 64)
HOPS_MS = (0, 10, 50, 100)
DRAFT = DraftModel(right=0.7, seconds=0.004)
CYCLE = 6  # halvings when the hop is looked for


@cache
def curves(stages: int, layers: str = "") -> tuple[Curve, ...]:
    """Of the demo model in so many stages, measured now."""
    import asyncio  # noqa: PLC0415

    from engine.local.model import demo_split  # noqa: PLC0415

    folder = asyncio.run(demo_split(stages, print, layers=layers))
    command = [sys.executable, "-m", "bench.curves", "fast", str(folder)]
    return tuple(read_curves(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def hop_seconds(stages: tuple[Curve, ...], single: float, tokens: int) -> float:
    """The hop with which one user gets `single` tokens/s: found by halving."""
    low, high = 0.0, 0.02
    for _ in range(CYCLE + 4):
        middle = (low + high) / 2
        slower = tokens_per_second(Fleet(stages=stages, hop=middle), 1, tokens) < single
        low, high = (low, middle) if slower else (middle, high)
    return (low + high) / 2


def measured_users() -> Iterator[tuple[int, float, int]]:
    """(users, tokens/s, tokens an answer) as bench/users.py measured them last, profile fast."""
    for users in USERS:
        record = Results().latest("users.throughput", what="pipeline", size=users, profile="fast")
        yield users, statistics.median(record["samples"]), record["params"]["tokens"]


def row(table: Table, what: str, measured: float, predicted: float) -> float:
    """One comparison; returns its error."""
    error = predicted / measured - 1
    mark = "" if abs(error) <= CLOSE else "[bold]"
    table.add_row(what, f"{measured:.1f}", f"{predicted:.1f}", f"{mark}{error:+.0%}")
    keep("check", [predicted], what=what, measured=measured)
    return error


def keep(name: str, samples: list[float], **params: Any) -> None:
    record = Record(name=f"simulate.{name}", params=params, unit="tokens/s", samples=samples)
    record.append_to(RESULTS / "simulate.jsonl")


def check(stages: tuple[Curve, ...], hop: float) -> Table:
    """Predictions beside measurements."""
    table = Table("two stages", "measured, tok/s", "simulated", "error", title=f"a hop of {hop * 1e3:.1f} ms")
    for users, measured, tokens in measured_users():
        predicted = tokens_per_second(Fleet(stages=stages, hop=hop), users, tokens)
        row(table, f"{users} users" + (" (the hop was taken from this one)" if users == 1 else ""), measured, predicted)
    table.add_section()
    for hop_ms in HOPS_MS:
        for way, users, depth, draft in (("naive", 1, 2, None), ("groups", 2, 2, None)):
            record = Results().latest("wan", hop_ms=hop_ms, way=way)
            fleet = Fleet(stages=stages, hop=hop + hop_ms / 1e3, jitter=0.05, depth=depth, draft=draft)
            predicted = tokens_per_second(fleet, users, record["params"]["tokens"])
            row(table, f"{way}, links of {hop_ms} ms", statistics.median(record["samples"]), predicted)
    return table


def fleets(whole: Curve, hop: float, tokens: int) -> Table:
    """A large model in many stages: every stage has an equal part of 64 demo models' work."""
    table = Table(
        "stages", "links", "1 user", "as many as stages", "four each", "four each, drafts", "one core, 1 user"
    )
    table.title = "tokens/s of all users, a model of 64 times the demo model's work; nothing of this was measured"
    large = whole.times(64.0)
    one = tokens_per_second(Fleet(stages=(large,), hop=hop), 1, tokens)
    for count in FLEETS:
        stage = whole.times(64.0 / count)
        for hop_ms in HOPS_MS:
            fleet = Fleet(stages=(stage,) * count, hop=hop + hop_ms / 1e3, jitter=0.05 if hop_ms else 0.0)
            users = (1, count, 4 * count)
            speeds = [tokens_per_second(fleet, n, tokens) for n in users]
            speeds.append(tokens_per_second(replace(fleet, draft=DRAFT), 4 * count, tokens))
            keep("fleet", speeds, stages=count, hop_ms=hop_ms, users=users)
            table.add_row(str(count), f"{hop_ms} ms", *(f"{speed:.1f}" for speed in speeds), f"{one:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", default=["check", "fleets"])
    parser.add_argument("--tokens", type=int, default=32, help="of an answer in the fleets")
    options = parser.parse_args()
    console = Console(width=130)
    stages = curves(2, "18,12")
    _, single, tokens = next(measured_users())
    hop = hop_seconds(stages, single, tokens)
    if "check" in options.parts:
        console.print(check(stages, hop))
    if "fleets" in options.parts:
        console.print(fleets(curves(1)[0], hop, options.tokens))


if __name__ == "__main__":
    main()
