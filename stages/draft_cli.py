"""`draft-run`: a draft model for decoders on other machines."""

import functools
from pathlib import Path
from typing import Annotated

import typer

from engine.contract.manifest import load_manifest
from engine.service import configure_logging, run_process, serve
from engine.transport.nats import connect
from engine.transport.subjects import Subjects
from stages.config import parse_cores
from stages.cores import pin_to
from stages.draft_load import check_draft, load_draft
from stages.draft_service import DraftService

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def run(
    draft: Annotated[Path, typer.Option(help="Folder written by shard-export draft.")],
    shards: Annotated[Path, typer.Option(help="The model it drafts for: folder written by shard-export split.")],
    nats: Annotated[str, typer.Option(envvar="NATS_URL", help="Broker.")] = "nats://127.0.0.1:4222",
    deployment: Annotated[str, typer.Option(help="Separates installations that share a broker.")] = "default",
    device: Annotated[str, typer.Option(help="OpenVINO device.")] = "CPU",
    threads: Annotated[int, typer.Option(min=0, help="Threads that compute; 0: one per core in use.")] = 1,
    cores: Annotated[str, typer.Option(help="Stay on these cores, e.g. 0,1 or 0-3.")] = "",
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Log lines as JSON.")] = False,
) -> None:
    """Draft for decoders started with --draft remote."""
    run_process(lambda: serve_draft(draft, shards, nats, deployment, device, threads, cores, json_logs))


async def serve_draft(
    draft: Path, shards: Path, nats: str, deployment: str, device: str, threads: int, cores: str, json_logs: bool
) -> None:
    """Connect, load, serve."""
    configure_logging(json=json_logs)
    if cores:
        pin_to(parse_cores(cores))
    manifest = load_manifest(shards)
    check_draft(draft, manifest)  # before waiting for a broker
    subjects = Subjects(deployment, manifest.slug)
    load = functools.partial(load_draft, draft, manifest, device=device, threads=threads)
    async with connect(nats, name="draft") as transport:
        await serve(DraftService(transport, subjects, load, lambda line: print(line, flush=True)), grace=5.0)


if __name__ == "__main__":
    app()
