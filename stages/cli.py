"""`stage-run`: the worker of one stage."""

import asyncio
import functools
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from engine.contract.control import MAIN_PIPELINE
from engine.contract.errors import BrokerError
from engine.contract.manifest import Manifest, load_manifest
from engine.contract.quality import quality_lines
from engine.distribution.models import Source, split_folder
from engine.distribution.pieces import Need
from engine.monitoring.process import show_stage
from engine.options import (
    DEFAULT_NATS,
    App,
    Cores,
    Deployment,
    Device,
    LimitRate,
    Log,
    LogForm,
    Metrics,
    Nats,
    Pipeline,
    Pull,
    PullModel,
    Threads,
)
from engine.service import announce, configure_logging, run_process, serve
from engine.transport.nats import connect
from engine.transport.subjects import Subjects
from stages.config import StageConfig, parse_cores, parse_kv_memory
from stages.cores import pin_to
from stages.giveway import GiveWay, Sensors
from stages.heartbeat import Loaded
from stages.identity import identify, new_incarnation
from stages.loader import check_shard, load_runner, shard_shape
from stages.owner import YieldPolicy
from stages.place import Terms
from stages.probe import measure_hop, probe_shard
from stages.selftest import self_test
from stages.settings import RunnerOptions
from stages.worker import StageWorker

BROKER_SECONDS: Final = 2.0  # a probe does not wait longer for one
app = App(rich_markup_mode=None)


class RunnerName(StrEnum):
    """Choices of --runner."""

    paged = "paged"
    stateful = "stateful"
    static = "static"


class KvPrecisionName(StrEnum):
    """Choices of --kv-precision."""

    f16 = "f16"
    u8 = "u8"


class ProfileName(StrEnum):
    """Choices of --profile."""

    exact = "exact"
    fast = "fast"


@app.command()
def run(
    index: Annotated[int, typer.Option(help="Which stage, from 0.")],
    shards: Annotated[
        Path | None, typer.Option(help="Folder written by shard-export split; with --pull the one to fill.")
    ] = None,
    pull: Pull = False,
    model: PullModel = "",
    limit_rate: LimitRate = "0",
    nats: Nats = DEFAULT_NATS,
    deployment: Deployment = "default",
    pipeline: Pipeline = MAIN_PIPELINE,
    runner: Annotated[RunnerName, typer.Option(help="How attention runs.")] = RunnerName.paged,
    profile: Annotated[ProfileName, typer.Option(help="Equal to the last bit, or fast.")] = ProfileName.exact,
    device: Device = "CPU",
    threads: Threads = 0,
    cores: Cores = "",
    kv_memory: Annotated[
        str, typer.Option(help="Paged: size of the KV cache, e.g. 2GiB; a share of free memory, e.g. 25%; auto: 50%.")
    ] = "auto",
    kv_precision: Annotated[
        KvPrecisionName | None,
        typer.Option(help="Fast only: f16 is its default; u8 holds nearly twice the tokens, other answers."),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Stateful: sequences at once.")] = 8,
    standby: Annotated[
        bool, typer.Option("--standby", help="Load and wait; serve when the stage has no other worker, or it leaves.")
    ] = False,
    give_way: Annotated[
        bool,
        typer.Option("--yield", help="On battery or when others use the CPU, let a standby serve if there is one."),
    ] = False,
    yield_cpu: Annotated[float, typer.Option(min=0, max=100, help="Percent of the CPU that others may use.")] = 50.0,
    yield_battery: Annotated[float, typer.Option(min=0, max=100, help="Percent of charge from which down.")] = 100.0,
    yield_after: Annotated[float, typer.Option(min=0, help="Seconds that others must use more.")] = 5.0,
    yield_back: Annotated[float, typer.Option(min=0, help="Seconds of quiet before it would serve again.")] = 60.0,
    cache: Annotated[Path | None, typer.Option(help="Keep compiled models here for the next start.")] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds to hand over and finish after SIGTERM.")] = 10.0,
    log: Log = LogForm.text,
    metrics: Metrics = "",
    probe: Annotated[
        bool, typer.Option("--probe", help="Serve nothing: measure this machine, print JSON for shard-export plan.")
    ] = False,
    name: Annotated[str, typer.Option(help="With --probe: the name of this worker in plans, else the host's.")] = "",
) -> None:
    """Serve one shard: compute its steps in order and send them on. SIGTERM drains."""
    source = Source(nats=nats, deployment=deployment, model=model, limit_rate=limit_rate) if pull else None
    config_of = functools.partial(
        StageConfig,
        index=index,
        nats=nats,
        deployment=deployment,
        runner=RunnerOptions(
            kind=runner.value,
            profile=profile.value,
            device=device,
            threads=threads,
            kv_bytes=parse_kv_memory(kv_memory),
            kv_precision=None if kv_precision is None else kv_precision.value,
            slots=slots,
            cache=cache,
        ),
        cores=parse_cores(cores),
        pipeline=pipeline,
        standby=standby,
        grace=grace,
        giving_way=YieldPolicy(cpu=yield_cpu / 100, battery=yield_battery / 100, after=yield_after, back=yield_back)
        if give_way
        else None,
    )

    async def start() -> None:
        configure_logging(json=log is LogForm.json)
        config = config_of(shards=await split_folder(shards, source, Need(stages=(index,))))
        await (probe_stage(config, name=name) if probe else serve_stage(config, metrics=metrics))

    run_process(start)


async def serve_stage(config: StageConfig, *, metrics: str = "") -> None:
    """Check the shard, connect, load, serve."""
    if config.cores:
        pin_to(config.cores)
    manifest = load_manifest(config.shards)
    subjects = Subjects(config.deployment, manifest.slug)
    await asyncio.to_thread(check_shard, config.shards, manifest, config.index)
    subjects.lease_key(config.pipeline)  # is it a name?
    identity = identify(manifest, config.index, config.runner, pipeline=config.pipeline)
    for what, value in quality_lines(manifest):
        announce(f"{what}: {value}")
    async with connect(config.nats, name=f"stage-{config.index}") as transport:
        worker = StageWorker(
            transport,
            subjects,
            identity,
            functools.partial(load_shard, config, manifest),
            announce=announce,
            terms=Terms(standby=config.standby, grace=config.grace),
        )
        watch = [GiveWay(worker, config.giving_way, Sensors().look)] if config.giving_way else []
        shown = show_stage(transport, subjects, worker.heartbeat, metrics, announce)
        await serve(worker, *watch, *shown, grace=config.grace)


async def probe_stage(config: StageConfig, *, name: str) -> None:
    """Measure one shard on this machine, and the way to the broker if there is one; print JSON."""
    if config.cores:
        pin_to(config.cores)
    manifest = load_manifest(config.shards)
    await asyncio.to_thread(check_shard, config.shards, manifest, config.index)
    found = await asyncio.to_thread(probe_shard, config.shards, manifest, config.index, config.runner, name)
    with suppress(BrokerError):
        async with connect(config.nats, name=f"probe-{config.index}", wait=BROKER_SECONDS) as transport:
            subject = Subjects(config.deployment, manifest.slug).probe(new_incarnation())
            hop = await measure_hop(transport, subject, size=2 * 4 * manifest.hidden_size)
            found = replace(found, hop_ms=hop)
    print(found.dumps().decode())


def load_shard(config: StageConfig, manifest: Manifest) -> Loaded:
    """Load, warm up and test one shard; blocks."""
    runner = load_runner(config.shards, manifest, config.index, config.runner)
    return Loaded(runner, self_test(runner, shard_shape(manifest, config.index)))


if __name__ == "__main__":
    app()
