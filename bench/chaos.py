"""Is every prompt answered once and right while every process is killed, stopped and restarted at random?

Users ask without end, each one prompt after the other. Meanwhile broker, stages and decoder are killed (-9), stopped
for a while, or told to end, one at a time, the next one some seconds after tokens flow again. Whatever ends is started
again, as systemd would. Every answer is compared with the undisturbed one, and the event log with what it should hold.
"""

import argparse
import asyncio
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.chaos_fleet import Fleet
from bench.chaos_users import Asked, Users
from bench.record import RESULTS, Record
from engine.local.model import demo_split
from engine.local.pipeline import local_pipeline

STUCK_SECONDS = 120.0  # without a token anywhere
CALM_SECONDS = (2.0, 8.0)  # of tokens between two faults
STOPPED_SECONDS = (0.5, 8.0)
KINDS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "restart": signal.SIGTERM}
Faults = dict[tuple[str, str], list[float]]  # by process and kind: seconds without a token, once for each fault


async def one_fault(fleet: Fleet, users: Users, chance: random.Random) -> tuple[str, str, float]:
    """Do something to somebody and wait until tokens flow again: the process, what was done, the pause in seconds."""
    await asyncio.sleep(chance.uniform(*CALM_SECONDS))
    name, kind = chance.choice(fleet.names), chance.choice(list(KINDS))
    began = time.monotonic()
    print(f"{kind} {name}", file=sys.stderr)
    if kind == "stop":
        child = fleet.children[name]
        child.signal(signal.SIGSTOP)
        await asyncio.sleep(chance.uniform(*STOPPED_SECONDS))
        child.signal(signal.SIGCONT)
    else:
        await fleet.end(name, KINDS[kind])
    await users.next_token()
    return name, kind, users.longest_pause(since=began)


async def disturb(fleet: Fleet, users: Users, seconds: float, chance: random.Random) -> Faults:
    """Faults until the time is over. Raises TimeoutError when no token comes any more."""
    faults: Faults = {}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        async with asyncio.timeout(STUCK_SECONDS):
            name, kind, pause = await one_fault(fleet, users, chance)
        faults.setdefault((name, kind), []).append(pause)
    return faults


async def chaos(home: Path, *, seconds: float, users: int, tokens: int, seed: int) -> tuple[Faults, list[Asked], Fleet]:
    shards = await demo_split(2, print)
    options = ("--grace", "5")
    async with local_pipeline(shards, home, print, decoder_options=options) as pipeline:
        async with Users(pipeline.url, pipeline.slug, users, tokens, seed) as crowd:
            await crowd.learn()
            async with Fleet(pipeline, options) as fleet:
                asking = asyncio.create_task(crowd.ask())
                faults = await disturb(fleet, crowd, seconds, random.Random(seed))
                crowd.enough.set()
                async with asyncio.timeout(STUCK_SECONDS):
                    asked = await asking
                    await crowd.check_log(asked)
        return faults, asked, fleet


def percentile(samples: list[float], share: float) -> float:
    return sorted(samples)[min(int(share * len(samples)), len(samples) - 1)]


def table(faults: Faults) -> Table:
    found = Table("process", "fault", "times", "pause p50 s", "p95 s", "longest s")
    everything = [pause for pauses in faults.values() for pause in pauses]
    for (name, kind), pauses in [*sorted(faults.items()), (("all", ""), everything)]:
        numbers = (statistics.median(pauses), percentile(pauses, 0.95), max(pauses))
        found.add_row(name, kind, str(len(pauses)), *(f"{number:.1f}" for number in numbers))
    return found


def report(faults: Faults, asked: list[Asked], fleet: Fleet, params: dict[str, float]) -> bool:
    """Print and store what was found; whether all is well."""
    for (name, kind), pauses in faults.items():
        params_here = {**params, "process": name, "fault": kind}
        Record(name="chaos.pause", params=params_here, unit="s", samples=pauses).append_to(RESULTS / "chaos.jsonl")
    wrong = [one for one in asked if one.wrong]
    epochs, tokens, resumed = fleet.replayed()
    summary = {
        "answers": len(asked),
        "wrong": len(wrong),
        "asked again": sum(one.attempts - 1 for one in asked),
        "epochs lost": epochs,
        "tokens replayed": tokens,
        "answers another decoder went on with": resumed,
    }
    Record(
        name="chaos.answers", params={**params, **summary}, unit="s", samples=[one.seconds for one in asked]
    ).append_to(RESULTS / "chaos.jsonl")
    console = Console()
    console.print(table(faults))
    console.print(", ".join(f"{what} {count}" for what, count in summary.items()))
    console.print("exit codes:", ", ".join(f"{name} {code}: {n}" for (name, code), n in sorted(fleet.exits.items())))
    for one in wrong:
        console.print(f"[red]{one.request}: {one.wrong}")
    return not wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--home", type=Path, help="keep logs and the broker's store here")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shardline-chaos-", ignore_cleanup_errors=True) as temporary:
        run = chaos(
            asked.home or Path(temporary),
            seconds=asked.minutes * 60,
            users=asked.users,
            tokens=asked.tokens,
            seed=asked.seed,
        )
        params = {"minutes": asked.minutes, "users": asked.users, "tokens": asked.tokens, "seed": asked.seed}
        good = report(*asyncio.run(run), params)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
