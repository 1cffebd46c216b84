"""Build a split from a Hugging Face folder stage by stage: memory for one stage, and resumable.

What is finished lies beside the target in `.NAME.building` until all is; a second run of the same command goes on there.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from engine.contract.errors import CutError, ManifestError, ShardlineError, UsageError
from engine.contract.manifest import FileDigest, Manifest, StageManifest, check_files
from engine.contract.sizes import show_size
from export_tools.plan import Weights
from export_tools.sliced.checkpoint import CannotSliceError, estimate, read_checkpoint
from export_tools.sources.huggingface import check_exporter, digest_of_huggingface
from export_tools.sources.ir import describe
from export_tools.split import Facts, SplitOptions, finish, plan_ranges

STATE: Final = "state.json"
MADE_BY: Final = ("shardline", "openvino", "nncf", "optimum-intel", "transformers", "torch")
_ERRORS: Final = {error.__name__: error for error in (CutError, UsageError, ManifestError)}
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Piece:
    """A finished stage and what its process found."""

    stage: StageManifest
    facts: Facts
    layers: tuple[int, ...]  # bytes of each
    embedding: int
    head: int
    peak: int  # bytes of resident memory that building it took


def build_sliced(folder: Path, options: SplitOptions, say: Say) -> Manifest:
    """Write the split to `options.out`. Raises CannotSliceError when the model must be exported whole."""
    check_exporter(folder)
    checkpoint = read_checkpoint(folder, _layers_of(folder))
    _check_options(options)
    ranges = plan_ranges(estimate(checkpoint, options.weights), options)
    say("reading its weights once for their digest")
    digest = digest_of_huggingface(folder)
    work = _Work(options.out.parent / f".{options.out.name}.building", _key(digest, ranges, options), say)
    work.open()
    task = {
        "folder": str(folder.resolve()),
        "layers": checkpoint.layers,
        "weights": asdict(options.weights),
        "beam_gather": options.beam_gather,
        "static": asdict(options.static) if options.static else None,
    }
    try:
        pieces = _build_all(work, task, ranges, say)
    except CannotSliceError:
        work.remove()
        raise
    source = describe(_with_tokenizer(folder, work.folder), folder / "config.json", digest)
    source = replace(source, path=folder, name=folder.resolve().name)
    split = work.folder / "split"
    manifest = finish(split, source, _together(pieces), _weights(pieces), tuple(p.stage for p in pieces), options)
    work.remove()
    return manifest


def _build_all(
    work: "_Work", task: dict[str, Any], ranges: tuple[tuple[int, int], ...], say: Say
) -> list[Piece]:
    began, built, check = time.monotonic(), 0, list(ranges)
    left = sum(last - first for index, (first, last) in enumerate(ranges) if index not in work.done)
    for index, (first, last) in enumerate(ranges):
        if index in work.done:
            continue
        piece = _build_one({**task, "index": index, "first": first, "last": last, "check": check}, work)
        check = []
        work.add(index, piece)
        built, left = built + last - first, left - (last - first)
        minutes = (time.monotonic() - began) / built * left / 60
        rest = f"; about {_minutes(minutes)} left" if left else ""
        stage = piece.stage
        say(
            f"stage {index}: layers [{first}, {last}), {show_size(stage.weight_bytes)}, "
            f"took up to {show_size(piece.peak)} of memory{rest}"
        )
    return [work.done[index] for index in range(len(ranges))]


def _build_one(task: Mapping[str, Any], work: "_Work") -> Piece:
    """One stage, in two processes: neither holds what the other needs."""
    index = task["index"]
    fresh, target = work.folder / "fresh", work.folder / "split"
    for path in (fresh, target / f"stage{index}"):
        shutil.rmtree(path, ignore_errors=True)
    converted = _run({**task, "task": "convert", "target": str(fresh)})
    places = {"source": str(fresh), "scratch": str(fresh / "compressed"), "target": str(target)}
    stored = _run({**task, "task": "store", **places})
    shutil.rmtree(fresh)
    return _piece({**stored, "peak": max(converted["peak"], stored["peak"])})


def _run(job: Mapping[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "export_tools.sliced.worker", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        if done.returncode < 0:
            said = f"it was ended by signal {-done.returncode}, as when memory runs out: more --stages take less"
        raise ShardlineError(
            f"stage {job['index']} could not be built ({job['task']}): {said}. The same command goes on from here"
        ) from None
    if reason := answer.get("cannot_slice"):
        raise CannotSliceError(reason)
    if kind := answer.get("error"):
        raise _ERRORS.get(kind, ShardlineError)(answer["message"])
    return answer


def _piece(fields: Mapping[str, Any]) -> Piece:
    stage = fields["stage"]
    return Piece(
        StageManifest(**{**stage, "files": tuple(FileDigest(**file) for file in stage["files"])}),
        Facts(**fields["facts"]),
        tuple(fields["layers"]),
        fields["embedding"],
        fields["head"],
        fields["peak"],
    )


class _Work:
    """The folder in which finished stages wait for the others."""

    def __init__(self, folder: Path, key: str, say: Say) -> None:
        self.folder = folder
        self.done: dict[int, Piece] = {}
        self._key, self._say = key, say

    def open(self) -> None:
        """Take over what an interrupted run of the same command left, if it is still what it was."""
        try:
            state = json.loads((self.folder / STATE).read_bytes())
        except (OSError, ValueError):
            state = {}
        if state.get("key") == self._key:
            for index, fields in state["done"].items():
                self._take(int(index), _piece(fields))
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


def _key(digest: str, ranges: tuple[tuple[int, int], ...], options: SplitOptions) -> str:
    """What the stages depend on; those of another key are of no use."""
    static = asdict(options.static) if options.static else None
    parts = [digest, ranges, asdict(options.weights), options.beam_gather, static, [_version(name) for name in MADE_BY]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _layers_of(folder: Path) -> int:
    """Read from config.json: transformers, which knows all names, would load torch into this process too."""
    config = json.loads((folder / "config.json").read_bytes())
    for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers"):
        if isinstance(config.get(name), int):
            return config[name]
    raise CannotSliceError("its config.json does not say how many layers it has")


def _check_options(options: SplitOptions) -> None:
    weights = options.weights
    if weights.kind == "int4" and weights.ratio < 1:
        raise CannotSliceError("--ratio chooses among all layers")


def _with_tokenizer(folder: Path, work: Path) -> Path:
    """A folder with tokenizer.json and the configuration: the model's own, or one in which it was converted."""
    if (folder / "tokenizer.json").is_file():
        return folder
    from transformers import AutoTokenizer  # noqa: PLC0415

    target = work / "tokenizer"
    AutoTokenizer.from_pretrained(folder, local_files_only=True).save_pretrained(target)
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
    return target


def _together(pieces: list[Piece]) -> Facts:
    return replace(
        pieces[-1].facts,  # the one with the head knows the vocabulary
        layers=sum(len(piece.layers) for piece in pieces),
        kv_bytes_per_token=sum(piece.facts.kv_bytes_per_token for piece in pieces),
    )


def _weights(pieces: list[Piece]) -> Weights:
    layers = tuple(size for piece in pieces for size in piece.layers)
    return Weights(layers, pieces[0].embedding, pieces[-1].head)


def _minutes(minutes: float) -> str:
    return f"{max(1, round(minutes * 60))} s" if minutes < 1 else f"{minutes:.0f} min"
