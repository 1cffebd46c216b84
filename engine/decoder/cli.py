"""`decoder-run`: the decoder of one pipeline."""

import asyncio
import functools
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from engine.contract.control import MAIN_PIPELINE
from engine.contract.manifest import Manifest, check_files, load_manifest
from engine.contract.traces import Tracer
from engine.decoder.admission import Admission
from engine.decoder.config import DecoderConfig
from engine.decoder.constraint import ConstraintCompiler
from engine.decoder.drafters import Drafter, Proposer, RemoteDrafter, ThreadDrafter
from engine.decoder.service import DecoderService
from engine.decoder.tokenizer import load_tokenizer
from engine.distribution.models import Source, split_folder
from engine.distribution.pieces import Need
from engine.monitoring.process import show_decoder
from engine.options import (
    DEFAULT_NATS,
    App,
    Deployment,
    LimitRate,
    Log,
    LogForm,
    Metrics,
    Nats,
    Pipeline,
    Pull,
    PullModel,
    Traces,
)
from engine.service import announce, configure_logging, run_process, serve
from engine.traces import tracing
from engine.transport.base import Transport
from engine.transport.nats import connect
from engine.transport.subjects import Subjects

NO_MODEL: Final = ("none", "lookup", "remote")  # drafts that need none here
app = App(rich_markup_mode=None)


@app.command()
def run(
    shards: Annotated[
        Path | None,
        typer.Option(
            help="Folder written by shard-export split (manifest and tokenizer); with --pull the one to fill."
        ),
    ] = None,
    pull: Pull = False,
    model: PullModel = "",
    limit_rate: LimitRate = "0",
    nats: Nats = DEFAULT_NATS,
    deployment: Deployment = "default",
    pipeline: Pipeline = MAIN_PIPELINE,
    max_running: Annotated[int, typer.Option(min=1, help="Requests in the pipeline at once.")] = 64,
    max_waiting: Annotated[int, typer.Option(min=0, help="Requests held here besides those.")] = 64,
    prefill_tokens: Annotated[int, typer.Option(min=8, help="Prompt tokens per step.")] = 256,
    steps_in_flight: Annotated[int, typer.Option(min=0, help="0: as measured, one per stage at least.")] = 0,
    smoothness: Annotated[float, typer.Option(min=1, help="Times by which prompts may slow answers down.")] = 1.6,
    default_max_tokens: Annotated[int, typer.Option(min=1, help="When a prompt does not say.")] = 512,
    max_deliveries: Annotated[int, typer.Option(min=1, help="Then a prompt becomes a dead letter.")] = 5,
    step_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds; a step is never lost sooner.")] = 5.0,
    draft: Annotated[
        str, typer.Option(help="Draft model: its folder (its slug, with --pull), remote (draft-run), lookup or none.")
    ] = "lookup",
    draft_tokens: Annotated[int | None, typer.Option(min=0, max=16, help="Always that many drafts.")] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds to finish answers after SIGTERM.")] = 30.0,
    log: Log = LogForm.text,
    metrics: Metrics = "",
    traces: Traces = "",
) -> None:
    """Serve one pipeline: take prompts, keep steps in flight, send answers. SIGTERM drains."""
    source = Source(nats=nats, deployment=deployment, model=model, limit_rate=limit_rate) if pull else None
    config_of = functools.partial(
        DecoderConfig,
        nats=nats,
        deployment=deployment,
        pipeline=pipeline,
        max_running=max_running,
        max_waiting=max_waiting,
        prefill_tokens=prefill_tokens,
        steps_in_flight=steps_in_flight,
        smoothness=smoothness,
        default_max_tokens=default_max_tokens,
        max_deliveries=max_deliveries,
        step_timeout=step_timeout,
        draft_tokens=draft_tokens,
        grace=grace,
    )

    async def start() -> None:
        configure_logging(json=log is LogForm.json)
        folder = await split_folder(shards, source, Need(tokenizer=True))
        config = config_of(shards=folder, draft=await draft_folder(draft, source))
        with tracing(traces, "decoder") as tracer:
            await serve_decoder(config, metrics=metrics, tracer=tracer)

    run_process(start)


async def draft_folder(draft: str, source: Source | None) -> str:
    """What --draft means: a folder that is not there is, with --pull, the slug of a draft model on the broker."""
    if source is None or draft in NO_MODEL or Path(draft).is_dir():
        return draft
    return str(await split_folder(None, replace(source, model=draft), Need(stages=(0,))))


async def serve_decoder(config: DecoderConfig, *, metrics: str = "", tracer: Tracer | None = None) -> None:
    """Load the tokenizer and the draft, connect, serve. Raises ManifestError, DeviceError."""
    manifest = load_manifest(config.shards)
    await asyncio.to_thread(check_files, config.shards, manifest.tokenizer_files)
    propose = await asyncio.to_thread(load_proposer, config.draft, manifest)
    tokenizer = await asyncio.to_thread(load_tokenizer, config.shards, manifest)
    compiler = await asyncio.to_thread(
        ConstraintCompiler, tokenizer, vocabulary=manifest.vocabulary, eos_ids=manifest.eos_ids
    )
    admission = Admission(
        manifest,
        tokenizer,
        config.default_max_tokens,
        sources_of(config.draft),
        config.draft_tokens,
        compiler,
    )
    subjects = Subjects(config.deployment, manifest.slug)
    with ThreadPoolExecutor(1, thread_name_prefix="draft") as thread:  # started by its first draft
        async with connect(config.nats, name="decoder") as transport:
            service = DecoderService(
                transport,
                subjects,
                admission,
                config,
                announce=announce,
                drafter=drafter_of(config.draft, propose, thread, transport, subjects),
                tracer=tracer,
            )
            shown = show_decoder(transport, subjects, service.heartbeat, metrics, announce)
            await serve(service, *shown, grace=config.grace)


def sources_of(draft: str) -> tuple[str, ...]:
    """Where drafts come from, in order of preference."""
    return {"none": (), "lookup": ("lookup",)}.get(draft, ("lookup", "model"))


def load_proposer(draft: str, manifest: Manifest) -> Proposer | None:
    """The draft model of a folder, loaded; None for other drafts. Blocks. Raises ManifestError, DeviceError."""
    if draft in NO_MODEL:
        return None
    from stages.draft_load import load_draft  # noqa: PLC0415  loads OpenVINO

    return load_draft(Path(draft), manifest).propose


def drafter_of(
    draft: str, propose: Proposer | None, thread: Executor, transport: Transport, subjects: Subjects
) -> Drafter | None:
    """Who is asked for drafts; `propose` runs in `thread`."""
    if draft == "remote":
        return RemoteDrafter(transport, subjects.draft)
    return ThreadDrafter(propose, thread) if propose else None


if __name__ == "__main__":
    app()
