"""What is sent of a split, in which pieces, under which names. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from engine.contract.manifest import FileDigest, Manifest, all_files, stage_manifest

CHUNK_BYTES: Final = 512 * 1024  # fits any broker's max_payload; the same everywhere, or nothing could be resumed
HEADER_BYTES: Final = 4096  # of max_payload, for the headers that go with a chunk


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [start, start + length) of a file."""

    number: int
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one process needs of a split; everything when nothing is named."""

    stages: tuple[int, ...] = ()
    tokenizer: bool = False


def pieces_of(size: int, chunk: int = CHUNK_BYTES) -> tuple[Piece, ...]:
    """The pieces of a file of that many bytes, in order; none of an empty one."""
    return tuple(Piece(at, start, min(chunk, size - start)) for at, start in enumerate(range(0, size, chunk)))


def group_of(entry: FileDigest) -> str:
    """Under which name the chunks of a file are kept: that of its contents."""
    return f"chunk.{entry.sha256}"


def needed(manifest: Manifest, need: Need) -> tuple[FileDigest, ...]:
    """The files of a split that somebody needs. Raises ManifestError for a stage that it does not have."""
    if not need.stages and not need.tokenizer:
        return all_files(manifest)
    shards = tuple(entry for index in sorted(set(need.stages)) for entry in stage_manifest(manifest, index).files)
    return shards + (manifest.tokenizer_files if need.tokenizer else ())


def distinct(entries: Iterable[FileDigest]) -> tuple[FileDigest, ...]:
    """Each content once, under the first of its names."""
    found: dict[str, FileDigest] = {}
    for entry in entries:
        found.setdefault(entry.sha256, entry)
    return tuple(found.values())
