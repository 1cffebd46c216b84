"""Which models a broker keeps, and having one of them here."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.contract.errors import NotPushedError, UsageError
from engine.contract.manifest import Manifest
from engine.contract.sizes import parse_size
from engine.distribution.pieces import Need
from engine.distribution.pull import Target, newest_manifest, pull
from engine.distribution.transfer import Mover, log
from engine.local.folders import cache_folder
from engine.transport.base import FileStore, Transport
from engine.transport.nats import connect
from engine.transport.subjects import Subjects

NOT_PUSHED_SECONDS: Final = 2.0  # until the broker is asked again whether a model has come
WATCH_SECONDS: Final = 10.0  # between echoes: on a slow link, chunks in front of one may take long


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where files come from. `model` "": the only one there that is no draft."""

    nats: str
    deployment: str
    model: str = ""
    limit_rate: str = "0"  # bytes per second


async def split_folder(shards: Path | None, source: Source | None, need: Need) -> Path:
    """The folder of a split: `shards`, filled from `source` if there is one, which may take until somebody pushes it.

    Raises UsageError, ManifestError, TransferError, BrokerError.
    """
    if source is None:
        if shards is None:
            raise UsageError("which shards? give --shards FOLDER, or --pull to fetch them from the broker")
        return shards
    mover, told = Mover(say=log.info, rate=parse_size(source.limit_rate)), False
    async with connect(source.nats, name="pull", watch=WATCH_SECONDS) as transport:
        while True:
            try:
                return await fetch_model(transport, source.deployment, source.model, shards, need, mover)
            except NotPushedError as error:
                if not told:
                    log.info("waiting: %s", error)
                told = True
            await asyncio.sleep(NOT_PUSHED_SECONDS)


async def fetch_model(
    transport: Transport, deployment: str, model: str, folder: Path | None, need: Need, mover: Mover
) -> Path:
    """What is needed of a model's newest split, in `folder` or in the cache. Raises as `split_folder`."""
    slug = model or await only_model(transport, deployment, mover)
    store = await existing_store(transport, deployment, slug)
    return await pull(store, slug, need, Target(cache=cache_folder(), folder=folder), mover)


async def existing_store(transport: Transport, deployment: str, slug: str) -> FileStore:
    """The file store of a model. Raises NotPushedError when there is none."""
    subjects = Subjects(deployment, slug)
    store = await transport.file_store(stream=subjects.files_stream, subject=subjects.files, create=False)
    if store is None:
        there = ", ".join(await slugs(transport, deployment)) or "nothing"
        raise NotPushedError(f"the broker has no files of {slug} in deployment {deployment!r}, only {there}")
    return store


async def slugs(transport: Transport, deployment: str) -> list[str]:
    """Of every model that has files on the broker."""
    before, after = Subjects(deployment, "x").files_stream.split("x", 1)
    streams = await transport.streams_of(Subjects.all_manifests(deployment))
    return sorted(stream.removeprefix(before).removesuffix(after) for stream in streams)


async def models(transport: Transport, deployment: str, mover: Mover) -> dict[str, Manifest]:
    """The newest manifest of each model that has been pushed as a whole."""
    found: dict[str, Manifest] = {}
    for slug in await slugs(transport, deployment):
        newest = await newest_manifest(await existing_store(transport, deployment, slug), slug, mover)
        if newest is not None:
            found[slug] = newest[1]
    return found


async def only_model(transport: Transport, deployment: str, mover: Mover) -> str:
    """The slug of the only model there that is no draft. Raises NotPushedError, UsageError when there is a choice."""
    found = [slug for slug, manifest in (await models(transport, deployment, mover)).items() if not manifest.drafts_for]
    if not found:
        raise NotPushedError(f"the broker has no model in deployment {deployment!r}: send one, 'shard-export push DIR'")
    if len(found) > 1:
        raise UsageError(f"the broker has several models ({', '.join(found)}): choose one with --model")
    return found[0]
