"""A pipeline of pinned one-core workers for measurements, and the whole model beside it for comparison."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

from bench.delay import Delay
from engine.contract.manifest import load_manifest
from engine.local.broker import start_broker
from engine.local.processes import Processes
from engine.transport.nats import NatsTransport, connect
from engine.transport.subjects import Subjects

Whole = Callable[[list[str], int], dict[str, Any]]


@contextlib.contextmanager
def whole(kind: str, folder: Path, precision: str) -> Generator[Whole]:
    """The whole model in a process of its own on core 0; yields a function that runs prompts on it."""
    command = [sys.executable, "-m", "bench.whole", kind, str(folder), "0", precision]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        json.loads(process.stdout.readline())

        def run(prompts: list[str], tokens: int) -> dict[str, Any]:
            assert process.stdin and process.stdout
            print(json.dumps({"prompts": prompts, "tokens": tokens}), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield run
        process.stdin.close()


@contextlib.asynccontextmanager
async def pipeline(
    shards: Path,
    profile: str,
    *decoder_options: str,
    delay: Delay | None = None,
    kv: str = "",
) -> AsyncGenerator[tuple[NatsTransport, Subjects]]:
    """One worker per stage, each with one thread on a core (its own as far as there are), a decoder, a broker; yields a
    connection.

    With a delay every worker and the decoder reach the broker through slow links; the connection yielded does not.
    """
    manifest = load_manifest(shards)
    with tempfile.TemporaryDirectory() as home:
        async with Processes(Path(home) / "logs") as processes:
            direct = await start_broker(processes, Path(home))
            url = direct
            if delay is not None:
                options = ["--delay-ms", str(delay.constant * 1e3), "--jitter-ms", str(delay.jitter * 1e3)]
                command = [sys.executable, "-m", "bench.delay", "--to", direct.removeprefix("nats://"), *options]
                proxy = await processes.start("link", command)
                url = f"nats://{(await proxy.wait_for_line('ready')).split()[-1]}"
            common = ["--shards", str(shards), "--nats", url]
            stage = [sys.executable, "-m", "stages.cli", "--threads", "1", "--profile", profile, *common]
            stage += ["--kv-memory", kv] if kv else []
            cores = os.cpu_count() or 1
            children = [
                await processes.start(f"stage-{i}", [*stage, "--index", str(i), "--cores", str(i % cores)])
                for i in range(len(manifest.stages))
            ]
            decoder = [sys.executable, "-m", "engine.decoder.cli", *common, *decoder_options]
            children.append(await processes.start("decoder", decoder))
            for child in children:
                await child.wait_for_line("ready")
            async with connect(direct, name="bench") as transport:
                yield transport, Subjects("default", manifest.slug)
