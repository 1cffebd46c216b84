"""Files by their digest on this machine: fetched once, whoever needs them, and shared by hard links.

`<cache>/files/<sha256>/` holds `data` once it is whole and checked; before that `part`, and in `done` which pieces
of it have come. Such a folder is used by one process at a time.
"""

import hashlib
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from engine.contract.errors import TransferError
from engine.contract.manifest import FileDigest
from engine.contract.sizes import show_size
from engine.distribution.pieces import Piece, pieces_of
from engine.local.lock import lock_if_free

DIGEST_LENGTH: Final = 64
FREE_MARGIN: Final = 64 << 20  # bytes of disk that stay free


def sha256(data: bytes) -> str:
    """Digest of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def read_piece(file: BinaryIO, piece: Piece) -> bytes:
    """The bytes of a piece; fewer where the file has been cut."""
    file.seek(piece.start)
    return file.read(piece.length)


def is_intact(path: Path, entry: FileDigest) -> bool:
    """Whether a file is there and is the one that its digest says. Reads all of it."""
    try:
        if path.stat().st_size != entry.bytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    except FileNotFoundError:
        return False


class Slot:
    """One file of the cache; for whoever holds it."""

    def __init__(self, home: Path, entry: FileDigest) -> None:
        self.entry, self.data = entry, home / "data"
        self._part, self._done = home / "part", home / "done"

    def ready(self) -> bool:
        """Whether the file is there; one that was altered is dropped."""
        if is_intact(self.data, self.entry):
            return True
        self.data.unlink(missing_ok=True)
        return False

    def check_room(self, missing: int) -> None:
        """Raise TransferError when that many bytes more do not fit on the disk."""
        free = shutil.disk_usage(self._part.parent).free
        if missing + FREE_MARGIN > free:
            raise TransferError(
                f"no room for {self.entry.path} in {self._part.parents[2]}: {show_size(missing)} to fetch, "
                f"{show_size(free)} free; set SHARDLINE_CACHE to a folder on another disk"
            )

    def begin(self) -> set[int]:
        """Make room for the file, or go on with what has come before: which pieces have come and are intact."""
        with self._part.open("ab") as part:
            part.truncate(self.entry.bytes)
        pieces = pieces_of(self.entry.bytes)
        found: dict[int, str] = {}
        for line in self._done.read_text().splitlines() if self._done.exists() else []:
            number, _, digest = line.partition(" ")  # the last line may be cut
            if number.isdecimal() and int(number) < len(pieces) and len(digest) == DIGEST_LENGTH:
                found[int(number)] = digest
        with self._part.open("rb") as part:
            intact = {at for at, digest in found.items() if sha256(read_piece(part, pieces[at])) == digest}
        self._done.write_text("".join(f"{at} {found[at]}\n" for at in sorted(intact)))
        return intact

    def write(self, piece: Piece, data: bytes, digest: str) -> None:
        """Keep a piece that has been checked. From one thread at a time."""
        with self._part.open("r+b") as part:
            part.seek(piece.start)
            part.write(data)
        with self._done.open("a") as done:
            done.write(f"{piece.number} {digest}\n")

    def finish(self) -> None:
        """All pieces have come. Raises TransferError, with nothing kept, when they are not the file."""
        self._done.unlink()
        if not is_intact(self._part, self.entry):
            self._part.unlink()
            raise TransferError(
                f"{self.entry.path} on the broker is not the file in the manifest (sha256): "
                "push it again with 'shard-export push … --again'"
            )
        self._part.replace(self.data)


@contextmanager
def slot_if_free(cache: Path, entry: FileDigest) -> Generator[Slot | None]:
    """The place of a file, held; None while another process holds it."""
    home = cache / "files" / entry.sha256
    home.mkdir(parents=True, exist_ok=True)
    with lock_if_free(home) as held:
        yield Slot(home, entry) if held else None


def place(data: Path, target: Path) -> None:
    """Put a file of the cache where a split has it: a hard link, or a copy where that cannot be."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        try:
            os.link(data, temporary)
        except OSError:
            shutil.copyfile(data, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
