"""`shard-export push`, `pull` and `remove`: splits by way of the broker."""

from pathlib import Path
from typing import Annotated

import orjson
import typer

from engine.contract.sizes import parse_size, show_size
from engine.distribution.models import WATCH_SECONDS, existing_store, fetch_model
from engine.distribution.pieces import Need
from engine.distribution.push import push as send
from engine.distribution.push import remove_older
from engine.distribution.transfer import Mover
from engine.options import DEFAULT_NATS, Deployment, LimitRate, Nats
from engine.service import configure_logging, run_process
from engine.transport.nats import BROKER_SECONDS, connect

Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def push(
    folder: Annotated[Path, typer.Argument(help="Written by split, build or draft.")],
    nats: Nats = DEFAULT_NATS,
    deployment: Deployment = "default",
    limit_rate: LimitRate = "0",
    again: Annotated[bool, typer.Option("--again", help="Also what is there, to replace what is damaged.")] = False,
    json: Json = False,
) -> None:
    """Send FOLDER to the broker, what is not there yet; machines fetch it with pull or stage-run --pull."""

    async def run() -> None:
        mover = make_mover(limit_rate)
        async with connect(nats, name="push", wait=BROKER_SECONDS, watch=WATCH_SECONDS) as transport:
            manifest = await send(transport, deployment, folder, mover, again=again)
        sent, total = mover.progress.moved, mover.progress.total
        if json:
            print(
                orjson.dumps({"model": manifest.slug, "split": manifest.split, "bytes": total, "sent": sent}).decode()
            )
        else:
            print(f"{manifest.slug}, split {manifest.split[:12]}: {show_size(sent)} sent of {show_size(total)}")

    run_process(run)


def pull(
    model: Annotated[str, typer.Argument(help="Slug; found by itself when there is only one.")] = "",
    index: Annotated[list[int] | None, typer.Option(help="Only what this stage needs; repeat it.")] = None,
    tokenizer: Annotated[bool, typer.Option("--tokenizer", help="Only what the decoder needs.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder to write; else one in the cache.")] = None,
    nats: Nats = DEFAULT_NATS,
    deployment: Deployment = "default",
    limit_rate: LimitRate = "0",
    json: Json = False,
) -> None:
    """Fetch the newest split of MODEL from the broker, what is not on this machine yet; print its folder."""

    async def run() -> None:
        mover, need = make_mover(limit_rate), Need(stages=tuple(index or ()), tokenizer=tokenizer)
        async with connect(nats, name="pull", wait=BROKER_SECONDS, watch=WATCH_SECONDS) as transport:
            folder = await fetch_model(transport, deployment, model, out, need, mover)
        fetched, total = mover.progress.moved, mover.progress.total
        mover.say(f"{show_size(fetched)} fetched of {show_size(total)}")
        print(orjson.dumps({"folder": str(folder), "bytes": total, "fetched": fetched}).decode() if json else folder)

    run_process(run)


def remove(
    model: Annotated[str, typer.Argument(help="Slug.")],
    older: Annotated[bool, typer.Option("--older", help="Only what its newest split does not need.")] = False,
    nats: Nats = DEFAULT_NATS,
    deployment: Deployment = "default",
) -> None:
    """Remove the files of MODEL from the broker."""

    async def run() -> None:
        mover = make_mover("0")
        async with connect(nats, name="remove", wait=BROKER_SECONDS) as transport:
            store = await existing_store(transport, deployment, model)
            if older:
                print(
                    f"{model}: {await remove_older(store, model, mover)} files of older splits removed from the broker"
                )
            else:
                await mover.ask(lambda: store.remove(">"))
                print(f"{model}: removed from the broker")

    run_process(run)


def make_mover(limit_rate: str) -> Mover:
    """Of a command that does nothing else. Raises UsageError."""
    configure_logging(json=False)
    return Mover(say=lambda line: typer.echo(line, err=True), rate=parse_size(limit_rate))
