"""A whole pipeline on one machine: broker, stages and decoder as child processes."""

import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.contract.errors import BrokerError
from engine.contract.manifest import load_manifest
from engine.local.broker import start_broker
from engine.local.processes import Child, Processes


@dataclass(frozen=True, slots=True)
class LocalPipeline:
    """What runs where."""

    url: str
    slug: str
    stages: tuple[Child, ...]
    decoder: Child


@asynccontextmanager
async def local_pipeline(
    shards: Path, home: Path, say: Callable[[str], None], *, stage_options: tuple[str, ...] = ()
) -> AsyncGenerator[LocalPipeline]:
    """Start everything, yield when it is ready, stop everything. Raises BrokerError when a process does not start."""
    manifest = load_manifest(shards)
    count = len(manifest.stages)
    threads = max(1, (os.cpu_count() or 1) // count)
    async with Processes(home / "logs") as processes:
        url = await start_broker(processes, home)
        say(f"nats-server with JetStream at {url}")
        environment = {**os.environ, "NATS_URL": url}
        common = ["--shards", str(shards), "--nats", url]
        runners = [sys.executable, "-m", "stages.cli", "--threads", str(threads), *common, *stage_options]
        stages = [
            await processes.start(f"stage-{index}", [*runners, "--index", str(index)], environment)
            for index in range(count)
        ]
        decoder = await processes.start("decoder", [sys.executable, "-m", "engine.decoder.cli", *common], environment)
        try:
            for child in (*stages, decoder):
                say(await child.wait_for_line("ready"))
        except ChildProcessError as error:
            raise BrokerError(str(error)) from error
        yield LocalPipeline(url, manifest.slug, tuple(stages), decoder)
