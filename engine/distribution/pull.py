"""From the broker's file store to a split on disk: what somebody needs and this machine does not have yet."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.contract.errors import ManifestError, NotPushedError, TransferError
from engine.contract.manifest import MANIFEST_NAME, FileDigest, Manifest, load_manifest, parse_manifest
from engine.distribution.cache import Slot, is_intact, place, sha256, slot_if_free
from engine.distribution.pieces import Need, Piece, distinct, group_of, needed, pieces_of
from engine.distribution.transfer import PAUSE_SECONDS, Mover, side_by_side
from engine.transport.base import FileStore

TRIES: Final = 3  # for a chunk that arrives damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a split goes on this machine."""

    cache: Path
    folder: Path | None = None  # None: one in the cache, of this split alone

    def folder_of(self, manifest: Manifest) -> Path:
        """Where the split's files are when they are there. Raises TransferError when another split is there."""
        folder = self.folder or self.cache / "pulled" / f"{manifest.slug}-{manifest.split[:12]}"
        try:
            found = load_manifest(folder)
        except ManifestError:
            if (folder / MANIFEST_NAME).exists():
                raise
            return folder
        if (found.slug, found.split) != (manifest.slug, manifest.split):
            raise TransferError(
                f"{folder} holds split {found.split[:12]} of {found.slug}, the broker has {manifest.split[:12]} of "
                f"{manifest.slug}: remove the folder, or name another one"
            )
        return folder


async def newest_manifest(store: FileStore, slug: str, mover: Mover) -> tuple[bytes, Manifest] | None:
    """The manifest that was pushed last; None when there is none. Raises ManifestError."""
    kept = await mover.ask(lambda: store.get("manifest.*"))
    if kept is None:
        return None
    return kept.data, parse_manifest(kept.data, f"the manifest of {slug} on the broker")


async def pull(store: FileStore, slug: str, need: Need, target: Target, mover: Mover) -> Path:
    """Fetch what is needed of the newest split of a model; its folder, every file of it checked.

    Raises ManifestError, TransferError, BrokerError.
    """
    found = await newest_manifest(store, slug, mover)
    if found is None:
        raise NotPushedError(f"the broker has no files of {slug}: 'shard-export push' has not finished yet")
    data, manifest = found
    folder = target.folder_of(manifest)
    folder.mkdir(parents=True, exist_ok=True)
    entries = needed(manifest, need)
    missing = [entry for entry in entries if not await asyncio.to_thread(is_intact, folder / entry.path, entry)]
    mover.expect(sum(entry.bytes for entry in distinct(entries)))
    mover.progress.skip(mover.progress.total - sum(entry.bytes for entry in distinct(missing)))
    for entry in distinct(missing):
        names = [other.path for other in missing if other.sha256 == entry.sha256]
        await _provide(store, entry, folder, names, target.cache, mover)
    (folder / MANIFEST_NAME).write_bytes(data)
    return folder


async def _provide(
    store: FileStore, entry: FileDigest, folder: Path, names: list[str], cache: Path, mover: Mover
) -> None:
    """One file, from the cache or the broker, to its places; after whoever else on this machine fetches it now."""
    told = False
    while True:
        with slot_if_free(cache, entry) as slot:
            if slot is not None:
                if await asyncio.to_thread(slot.ready):
                    mover.progress.skip(entry.bytes)
                else:
                    await _fetch(store, slot, mover)
                for name in names:
                    await asyncio.to_thread(place, slot.data, folder / name)
                return
        if not told:
            mover.say(f"{entry.path}: another process fetches it, waiting for that")
            told = True
        await asyncio.sleep(PAUSE_SECONDS)  # a lock tells nobody that it is free


async def _fetch(store: FileStore, slot: Slot, mover: Mover) -> None:
    entry, pieces = slot.entry, pieces_of(slot.entry.bytes)
    there = await asyncio.to_thread(slot.begin)
    missing = [piece for piece in pieces if piece.number not in there]
    slot.check_room(sum(piece.length for piece in missing))
    mover.progress.skip(entry.bytes - sum(piece.length for piece in missing))
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, thread_name_prefix="files") as thread:

        async def fetch(piece: Piece) -> None:
            await mover.pace(piece.length)
            data, digest = await _intact_chunk(store, entry, piece, mover)
            await loop.run_in_executor(thread, slot.write, piece, data, digest)
            mover.moved(piece.length, entry.path)

        await side_by_side(missing, fetch)
    await asyncio.to_thread(slot.finish)


async def _intact_chunk(store: FileStore, entry: FileDigest, piece: Piece, mover: Mover) -> tuple[bytes, str]:
    """A chunk that is what its digest says, fetched again when it is not. Raises TransferError."""
    what = f"chunk {piece.number} of {entry.path}"
    for _ in range(TRIES):
        kept = await mover.ask(lambda: store.get(f"{group_of(entry)}.{piece.number}"))
        if kept is None:
            raise TransferError(f"{what} is not on the broker any more: push it again with 'shard-export push'")
        if len(kept.data) == piece.length and sha256(kept.data) == kept.digest:
            return kept.data, kept.digest
        mover.say(f"{what} is damaged (sha256): refused, fetching it again")
    raise TransferError(
        f"{what} is damaged on the broker (sha256), {TRIES} times: push it again with 'shard-export push … --again'"
    )
