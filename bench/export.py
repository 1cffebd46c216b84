"""How long does it take to make shards, and how much memory at most, by source and size?

    python -m bench.export                         # the demo model: GGUF, and the OpenVINO folder made of it
    python -m bench.export --model /tmp/models/1b  # a Hugging Face folder (bench.models), stage by stage and at once

Every run is a process of its own; the peak is the largest resident memory of it or of one of its children, each of
which ends before the next begins. Hugging Face folders need the [export] environment.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.model import ir_folder
from bench.record import RESULTS, Record
from engine.contract.sizes import show_size
from engine.local.model import demo_gguf

KILO = 1024  # of ru_maxrss on Linux


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    seconds: float
    peak: int  # bytes
    failed: bool


def make(*words: str) -> Made:
    """One run of shard-export; what it says goes to this terminal."""
    began = time.monotonic()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-m", "export_tools.cli", *words], os.environ)
    _, status, usage = os.wait4(pid, 0)
    return Made(
        seconds=time.monotonic() - began,
        peak=usage.ru_maxrss * KILO,  # its own, or that of a child it waited for
        failed=os.waitstatus_to_exitcode(status) != 0,
    )


def bytes_of(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for pattern in ("*.safetensors", "*.bin") for file in path.glob(pattern))


def measure(name: str, source: Path, home: Path, *words: str) -> list[str]:
    """A row of the table; the shards are removed."""
    out = home / "out"
    made = make(words[0], str(source), "--out", str(out), *words[1:])
    shards = sum(file.stat().st_size for file in out.glob("stage*/*.bin"))
    shutil.rmtree(out, ignore_errors=True)
    if made.failed:
        return [name, show_size(bytes_of(source)), " ".join(words), "failed", show_size(made.peak), ""]
    params = {"source": name, "bytes": bytes_of(source), "options": list(words), "shards": shards}
    Record(name="export.time", params=params, unit="s", samples=[made.seconds]).append_to(RESULTS / "export.jsonl")
    Record(name="export.peak", params=params, unit="B", samples=[made.peak]).append_to(RESULTS / "export.jsonl")
    seconds = f"{made.seconds:.0f} s"
    return [name, show_size(bytes_of(source)), " ".join(words), seconds, show_size(made.peak), show_size(shards)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a Hugging Face folder instead of the demo model")
    parser.add_argument("--stages", default="4")
    parser.add_argument("--weights", default="int4")
    parser.add_argument("--at-once", action="store_true", help="also as a whole")
    options = parser.parse_args()
    table = Table("source", "its size", "command", "time", "peak memory", "shards")
    with tempfile.TemporaryDirectory(dir=options.model.parent if options.model else None) as temporary:
        home = Path(temporary)
        if options.model:
            words = ["--stages", options.stages, "--weights", options.weights]
            name = f"Hugging Face, {options.model.name}"
            table.add_row(*measure(name, options.model, home, "build", *words, "--no-quality"))
            table.add_row(*measure(name, options.model, home, "build", *words))
            if options.at_once:
                table.add_row(*measure(name, options.model, home, "build", *words, "--at-once", "--no-quality"))
        else:
            gguf = asyncio.run(demo_gguf(print))
            table.add_row(*measure("GGUF", gguf, home, "split", "--stages", "2"))
            table.add_row(*measure("OpenVINO", ir_folder(), home, "split", "--stages", "2"))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
