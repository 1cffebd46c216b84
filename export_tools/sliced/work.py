"""What a build has finished so far, kept on disk until all of it is."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from engine.contract.errors import ManifestError
from engine.contract.manifest import StageManifest, check_files
from engine.contract.reading import read
from export_tools.split import Facts

STATE: Final = "state.json"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Piece:
    """A finished stage and what its process found."""

    stage: StageManifest
    facts: Facts
    layers: tuple[int, ...]  # bytes of each
    embedding: int
    head: int
    quality: dict[str, Any]  # of all stages, on the last
    peak: int  # bytes of resident memory that building it took


def read_piece(fields: Mapping[str, Any]) -> Piece:
    """From what a worker answered, or the state says. Raises TypeError."""
    return read(Piece, fields, exactly=True)


class Work:
    """The folder in which finished stages wait for the others."""

    def __init__(self, folder: Path, key: str, say: Say) -> None:
        self.folder = folder
        self.done: dict[int, Piece] = {}
        self._key, self._say = key, say

    def open(self) -> None:
        """Take over what an interrupted run of the same command left, if it is still what it was."""
        try:
            state: dict[str, Any] = json.loads((self.folder / STATE).read_bytes())
        except (OSError, ValueError):
            state = {}
        if state.get("key") == self._key:
            for index, fields in state["done"].items():
                self._take(int(index), read_piece(fields))
        elif self.folder.exists():
            self._say(f"{self.folder} was begun with another source or other options: it is removed")
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._save()

    def _take(self, index: int, piece: Piece) -> None:
        try:
            check_files(self.folder / "split", piece.stage.files)
        except ManifestError:
            self._say(f"stage {index} of the interrupted run is not as it was written: it is built again")
        else:
            self._say(f"stage {index} is there from the interrupted run")
            self.done[index] = piece

    def add(self, index: int, piece: Piece) -> None:
        """A stage is finished."""
        self.done[index] = piece
        self._save()

    def remove(self) -> None:
        """Nothing of it is needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _save(self) -> None:
        new = self.folder / f"{STATE}.new"
        new.write_text(json.dumps({"key": self._key, "done": {i: asdict(piece) for i, piece in self.done.items()}}))
        new.replace(self.folder / STATE)
