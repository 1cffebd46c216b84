"""How fast does a split of a large model answer with a worker per stage, and how much memory does each worker take?

    python -m bench.large /tmp/shards/8b --whole /tmp/shards/1-stage    # made by shard-export build from bench.models

All workers have one thread and share this machine's cores; each stage's peak of resident memory (VmHWM) is read when
the answers are there. `--whole` is the same model in one stage on one core, with the same prompts, afterwards.
"""

import argparse
import asyncio
import re
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from bench.fleet import pipeline
from bench.load import prompts_for, run_users
from bench.record import RESULTS, Record
from engine.contract.manifest import load_manifest
from engine.contract.sizes import show_size

KIB = 1024


def peaks() -> list[int]:
    """Bytes of resident memory at most, of every worker below this process, by stage."""
    found: dict[int, int] = {}
    for child in psutil.Process().children(recursive=True):
        words = child.cmdline()
        if "stages.cli" in words:
            status = Path(f"/proc/{child.pid}/status").read_text()
            found[int(words[words.index("--index") + 1])] = _kib(status, "VmHWM") * KIB
    return [found[index] for index in sorted(found)]


def _kib(status: str, name: str) -> int:
    line = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    assert line, f"no {name} in /proc/PID/status"
    return int(line[1])


async def measure(shards: Path, users: list[int], tokens: int, rounds: int, kv: str) -> list[list[str]]:
    manifest = load_manifest(shards)
    rows = []
    async with pipeline(shards, "fast", kv=kv) as (transport, subjects):
        for count in users:
            prompts = prompts_for(count, "{}")
            await run_users(transport, subjects, prompts, 4)
            samples = []
            for _ in range(rounds):
                result = await run_users(transport, subjects, prompts, tokens)
                samples.append(result["tokens"] / result["seconds"])
            params = {"model": manifest.name, "stages": len(manifest.stages), "users": count, "tokens": tokens}
            Record(name="large.speed", params=params, unit="tokens/s", samples=samples).append_to(
                RESULTS / "large.jsonl"
            )
            rows.append([manifest.name, str(len(manifest.stages)), str(count), f"{sorted(samples)[rounds // 2]:.2f}"])
        memory = peaks()
    params = {"model": manifest.name, "stages": len(manifest.stages), "kv": kv}
    Record(name="large.peak", params=params, unit="B", samples=[float(peak) for peak in memory]).append_to(
        RESULTS / "large.jsonl"
    )
    weights = [show_size(stage.weight_bytes) for stage in manifest.stages]
    shown = ", ".join(f"{show_size(peak)} ({weight})" for peak, weight in zip(memory, weights, strict=True))
    return [[*row, shown] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--whole", type=Path)
    parser.add_argument("--users", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv", default="256MiB", help="of each worker")
    options = parser.parse_args()
    table = Table("model", "stages", "users", "tokens/s, all together", "peak memory of each worker (its weights)")
    for shards in (options.shards, options.whole):
        if shards:
            rows = asyncio.run(measure(shards, options.users, options.tokens, options.rounds, options.kv))
            for row in rows:
                table.add_row(*row)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
