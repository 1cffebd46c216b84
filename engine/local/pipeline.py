"""A whole pipeline on one machine: broker, stages and decoder as child processes."""

import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from engine.contract.errors import BrokerError
from engine.contract.manifest import load_manifest
from engine.local.broker import key_file, start_broker
from engine.local.processes import Child, Processes
from engine.transport.address import BrokerUrl
from engine.transport.subjects import Subjects

KV_MEMORY: Final = "512MiB"  # of each stage: the same on every machine, and little enough for several stages on one


@dataclass(slots=True)
class LocalPipeline:
    """What runs where; a stage that ended can be started again."""

    url: str
    slug: str
    shards: Path
    processes: Processes
    stage_options: tuple[str, ...] = ()
    stages: list[Child] = field(default_factory=list[Child])
    decoder: Child | None = None
    keys: Path | None = None  # the folder whose broker asks for keys

    def url_for(self, role: str) -> BrokerUrl:
        """The broker's address, with the key of a role where it asks for keys."""
        return BrokerUrl(self.url, credentials=key_file(self.keys, role) if self.keys else None)

    def _options(self, role: str) -> list[str]:
        key = ["--credentials", str(key_file(self.keys, role))] if self.keys else []
        return ["--shards", str(self.shards), "--nats", self.url, *key]

    async def start_stage(self, index: int, count: int, *options: str) -> Child:
        """Start a worker of a stage; it shares the machine's cores evenly with the others."""
        threads = max(1, (os.cpu_count() or 1) // count)
        command = [sys.executable, "-m", "stages.cli", "--index", str(index), "--threads", str(threads)]
        command += ["--kv-memory", KV_MEMORY]
        return await self.processes.start(
            f"stage-{index}", [*command, *self._options(f"stage-{index}"), *self.stage_options, *options]
        )

    async def start_decoder(self, *options: str) -> Child:
        """Start a decoder."""
        command = [sys.executable, "-m", "engine.decoder.cli", *self._options("decoder"), *options]
        return await self.processes.start("decoder", command)


@asynccontextmanager
async def local_pipeline(
    shards: Path,
    home: Path,
    say: Callable[[str], None],
    *,
    stage_options: tuple[str, ...] = (),
    decoder_options: tuple[str, ...] = (),
    guarded: bool = False,
) -> AsyncGenerator[LocalPipeline]:
    """Start everything, yield when it is ready, stop everything. Raises BrokerError when a process does not start.

    `guarded`: the broker lets nobody in without a key of a role, made for the occasion.
    """
    manifest = load_manifest(shards)
    count = len(manifest.stages)
    async with Processes(home / "logs") as processes:
        models = (Subjects("default", manifest.slug),) if guarded else ()
        url = await start_broker(processes, home, models=models, stages=count)
        say(f"nats-server with JetStream at {url}")
        pipeline = LocalPipeline(url, manifest.slug, shards, processes, stage_options)
        pipeline.keys = home if guarded else None
        pipeline.stages = [await pipeline.start_stage(index, count) for index in range(count)]
        pipeline.decoder = await pipeline.start_decoder(*decoder_options)
        try:
            for child in (*pipeline.stages, pipeline.decoder):
                say(await child.wait_for_line("ready"))
        except ChildProcessError as error:
            raise BrokerError(str(error)) from error
        yield pipeline
