"""`draft-run`: a draft model for decoders on other machines."""

import functools
from pathlib import Path
from typing import Annotated, Final

import typer

from engine.contract.manifest import load_manifest
from engine.options import DEFAULT_NATS, App, Cores, Deployment, Device, Log, LogForm, Nats, Threads
from engine.service import announce, configure_logging, run_process, serve
from engine.transport.nats import connect
from engine.transport.subjects import Subjects
from stages.config import DraftConfig, parse_cores
from stages.cores import pin_to
from stages.draft_load import check_draft, load_draft
from stages.draft_service import DraftService

app = App(rich_markup_mode=None)
GRACE_SECONDS: Final = 5.0  # to finish a draft after SIGTERM


@app.command()
def run(
    draft: Annotated[Path, typer.Option(help="Folder written by shard-export draft.")],
    shards: Annotated[Path, typer.Option(help="The model it drafts for: folder written by shard-export split.")],
    nats: Nats = DEFAULT_NATS,
    deployment: Deployment = "default",
    device: Device = "CPU",
    threads: Threads = 1,
    cores: Cores = "",
    log: Log = LogForm.text,
) -> None:
    """Draft for decoders started with --draft remote."""
    run_process(
        lambda: serve_draft(
            DraftConfig(
                draft=draft,
                shards=shards,
                nats=nats,
                deployment=deployment,
                device=device,
                threads=threads,
                cores=parse_cores(cores),
                json_logs=log is LogForm.json,
            )
        )
    )


async def serve_draft(config: DraftConfig) -> None:
    """Check the draft, connect, load, serve."""
    configure_logging(json=config.json_logs)
    if config.cores:
        pin_to(config.cores)
    manifest = load_manifest(config.shards)
    check_draft(config.draft, manifest)  # before waiting for a broker
    subjects = Subjects(config.deployment, manifest.slug)
    load = functools.partial(load_draft, config.draft, manifest, device=config.device, threads=config.threads)
    async with connect(config.nats, name="draft") as transport:
        await serve(DraftService(transport, subjects, load, announce), grace=GRACE_SECONDS)


if __name__ == "__main__":
    app()
