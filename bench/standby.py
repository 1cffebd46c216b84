"""How long does an answer pause when a worker is killed and a standby takes over, or when it is told to stop?

Two one-core workers, a warm standby for the last stage, one user. In the middle of an answer the serving worker gets
SIGKILL, SIGTERM or SIGSTOP; the pause is the time from the signal to the next token event. Then a new standby is
started for the next round. `calm` is the longest gap between two tokens of an answer that nothing happens to.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.record import RESULTS, Record
from engine.client.client import Client
from engine.contract.prompt import FinalEvent
from engine.local.model import demo_split
from engine.local.pipeline import LocalPipeline, local_pipeline
from engine.transport.nats import connect
from engine.transport.subjects import Subjects

SIGNALS = {"calm": None, "SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGSTOP": signal.SIGSTOP}
WARM = 16  # tokens before the signal
STAGE = 1


async def pause(pipeline: LocalPipeline, client: Client, what: signal.Signals | None, tokens: int) -> float:
    """Seconds."""
    began, last, gap = 0.0, 0.0, 0.0
    async for event in client.generate(prompt="Once upon a time", max_tokens=tokens, ignore_eos=True, draft="none"):
        now = time.monotonic()
        if what is None and event.seq > WARM and not isinstance(event, FinalEvent):
            gap = max(gap, now - last)
        elif began and not gap:
            gap = now - began
        if event.seq == WARM and what is not None:
            began = time.monotonic()
            pipeline.stages[STAGE].signal(what)
        last = now
    return gap


async def measure(rounds: int, tokens: int, names: list[str]) -> dict[str, list[float]]:
    shards = await demo_split(2, print)
    samples: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as home:
        async with local_pipeline(shards, Path(home), print) as pipeline, connect(pipeline.url, name="bench") as link:
            client = Client(link, Subjects("default", pipeline.slug))
            await client.complete(prompt="Once upon a time", max_tokens=tokens, ignore_eos=True)
            for _ in range(rounds):
                for name in names:
                    standby = await pipeline.start_stage(STAGE, 2, "--standby")
                    await standby.wait_for_line("standby")
                    samples[name].append(await pause(pipeline, client, SIGNALS[name], tokens))
                    print(f"{name}: {samples[name][-1]:.3f} s", file=sys.stderr)
                    pipeline.stages[STAGE].kill()
                    await pipeline.stages[STAGE].wait()
                    pipeline.stages[STAGE] = standby
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--what", nargs="*", choices=list(SIGNALS), default=list(SIGNALS))
    options = parser.parse_args()
    table = Table("what happens", "median pause", "least", "largest")
    for name, samples in asyncio.run(measure(options.rounds, options.tokens, options.what)).items():
        record = Record(name="standby.pause", params={"what": name, "tokens": WARM}, unit="s", samples=samples)
        record.append_to(RESULTS / "standby.jsonl")
        table.add_row(name, f"{record.median:.3f} s", f"{min(samples):.3f} s", f"{max(samples):.3f} s")
    Console().print(table)


if __name__ == "__main__":
    main()
