"""A folder that only one process may use at a time."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from engine.contract.errors import BrokerError

LOCK_NAME: Final = ".lock"


@contextmanager
def lock_if_free(folder: Path) -> Generator[bool]:
    """Hold the folder if nobody else does, and say so; it is free again however this process ends."""
    with (folder / LOCK_NAME).open("ab") as file:
        try:
            _lock(file)
        except OSError:
            yield False
        else:
            yield True


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Hold the folder; it is free again when the context is left or the process ends, however that happens.

    Raises BrokerError when somebody else holds it.
    """
    with lock_if_free(folder) as held:
        if not held:
            raise BrokerError(f"another broker uses {folder}: stop it, or choose another folder")
        yield


def _lock(file: IO[bytes]) -> None:
    """Take the lock or raise OSError at once."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  not there elsewhere

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl  # noqa: PLC0415  not there on Windows

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
