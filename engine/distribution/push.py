"""From a split on disk to the broker's file store: only what is not there yet, the manifest last."""

import asyncio
from functools import partial
from pathlib import Path

from engine.contract.errors import TransferError
from engine.contract.manifest import (
    MANIFEST_NAME,
    FileDigest,
    Manifest,
    all_files,
    check_files,
    load_manifest,
    parse_manifest,
)
from engine.distribution.cache import read_piece, sha256
from engine.distribution.pieces import CHUNK_BYTES, HEADER_BYTES, Piece, distinct, group_of, pieces_of
from engine.distribution.pull import newest_manifest
from engine.distribution.transfer import Mover, side_by_side
from engine.transport.base import FileStore, Transport
from engine.transport.subjects import Subjects


async def push(transport: Transport, deployment: str, folder: Path, mover: Mover, *, again: bool = False) -> Manifest:
    """Send a split; nothing that is there already, unless `again`. Raises ManifestError, TransferError, BrokerError.

    A manifest on the broker therefore says that all its files are there.
    """
    if transport.max_payload < CHUNK_BYTES + HEADER_BYTES:
        raise TransferError(
            f"the broker takes messages of {transport.max_payload} bytes, chunks have {CHUNK_BYTES}: "
            "raise max_payload in its configuration to 1MB or more"
        )
    manifest = load_manifest(folder)
    entries = distinct(all_files(manifest))
    mover.say(f"checking {len(entries)} files of {manifest.slug}")
    await asyncio.to_thread(check_files, folder, entries)
    store = await open_store(transport, Subjects(deployment, manifest.slug))
    mover.expect(sum(entry.bytes for entry in entries))
    for entry in entries:
        await _send_file(folder, entry, store, mover, again=again)
    data = (folder / MANIFEST_NAME).read_bytes()
    found = await newest_manifest(store, manifest.slug, mover)
    if again or found is None or found[0] != data:
        name = f"manifest.{sha256(data)}"
        await mover.ask(lambda: store.put(name, data, digest=sha256(data)))
    return manifest


async def open_store(transport: Transport, subjects: Subjects) -> FileStore:
    """The file store of a model, made if missing. Raises BrokerError."""
    store = await transport.file_store(stream=subjects.files_stream, subject=subjects.files, create=True)
    assert store is not None
    return store


async def _send_file(folder: Path, entry: FileDigest, store: FileStore, mover: Mover, *, again: bool) -> None:
    group, pieces = group_of(entry), pieces_of(entry.bytes)
    there = set[str]() if again else await mover.ask(lambda: store.names(group))
    missing = [piece for piece in pieces if str(piece.number) not in there]
    mover.progress.skip(entry.bytes - sum(piece.length for piece in missing))

    async def send(piece: Piece) -> None:
        await mover.pace(piece.length)
        data, digest = await asyncio.to_thread(_read, folder / entry.path, piece)
        if len(data) != piece.length:
            raise TransferError(f"{folder / entry.path} has become shorter while it was sent: it is not complete there")
        await mover.ask(partial(store.put, f"{group}.{piece.number}", data, digest=digest))
        mover.moved(piece.length, entry.path)

    await side_by_side(missing, send)


def _read(path: Path, piece: Piece) -> tuple[bytes, str]:
    with path.open("rb") as file:
        data = read_piece(file, piece)
    return data, sha256(data)


async def remove_older(store: FileStore, slug: str, mover: Mover) -> int:
    """Forget files that only earlier splits of a model need; how many. Raises ManifestError, TransferError."""
    newest = await newest_manifest(store, slug, mover)
    if newest is None:
        return 0
    names, older = await mover.ask(partial(store.names, "manifest")), set[str]()
    for name in names - {sha256(newest[0])}:
        kept = await mover.ask(partial(store.get, f"manifest.{name}"))
        if kept is not None:
            manifest = parse_manifest(kept.data, f"an older manifest of {slug} on the broker")
            older |= {entry.sha256 for entry in all_files(manifest)}
        await mover.ask(partial(store.remove, f"manifest.{name}"))
    older -= {entry.sha256 for entry in all_files(newest[1])}
    for digest in older:
        await mover.ask(partial(store.remove, f"chunk.{digest}.*"))
    return len(older)
