"""Build a split from a Hugging Face folder stage by stage: memory for one stage, and resumable.

What is finished lies beside the target in `.NAME.building` until all is; the same command goes on from there.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from engine.contract.errors import ShardlineError
from engine.contract.manifest import Manifest
from engine.contract.sizes import show_size
from export_tools.plan import Weights
from export_tools.sliced.checkpoint import CannotSliceError, estimate, read_checkpoint
from export_tools.sliced.process import Run
from export_tools.sliced.process import run as run_alone
from export_tools.sliced.work import Piece, Say, Work, read_piece
from export_tools.sources.huggingface import check_exporter, digest_of_huggingface, is_huggingface
from export_tools.sources.ir import describe
from export_tools.split import Facts, SplitOptions, finish, plan_ranges

MADE_BY: Final = ("shardline", "openvino", "nncf", "optimum-intel", "transformers", "torch")


def try_build_sliced(source: Path, options: SplitOptions, say: Say) -> Manifest | None:
    """`build_sliced`; None where `source` is no Hugging Face folder or must be exported whole, which is said."""
    if not is_huggingface(source):
        return None
    check_exporter(source)
    try:
        return build_sliced(source, options, say)
    except CannotSliceError as reason:
        say(f"not stage by stage but at once, with memory for the whole model: {reason}")
        return None


def build_sliced(folder: Path, options: SplitOptions, say: Say, run: Run = run_alone) -> Manifest:
    """Write the split to `options.out`. Raises CannotSliceError when the model must be exported whole."""
    checkpoint = read_checkpoint(folder, _layers_of(folder))
    _check_options(options)
    expected = estimate(checkpoint, options.weights)
    ranges = plan_ranges(expected, options)
    say("reading its weights once for their digest")
    digest = digest_of_huggingface(folder)
    work = Work(options.out.parent / f".{options.out.name}.building", _key(digest, ranges, options), say)
    work.open()
    try:
        tokenizer = _with_tokenizer(folder, work.folder)
        source = replace(describe(tokenizer, folder / "config.json", digest), path=folder, name=folder.resolve().name)
        if options.static:
            options.static.check(source.context_length)
        sizes = {range_: expected.of(*range_) for range_ in ranges}
        pieces = _build_all(work, _task(folder, tokenizer, options, checkpoint.layers), sizes, say, run)
    except ShardlineError as error:
        if isinstance(error, CannotSliceError) or not work.done:
            work.remove()
        raise
    split = work.folder / "split"
    stages = tuple(piece.stage for piece in pieces)
    manifest = finish(split, source, _together(pieces), _weights(pieces), stages, options, pieces[-1].quality)
    work.remove()
    return manifest


def _task(folder: Path, tokenizer: Path, options: SplitOptions, layers: int) -> dict[str, Any]:
    """What all jobs of a build have in common."""
    return {
        "folder": str(folder.resolve()),
        "layers": layers,
        "weights": asdict(options.weights),
        "beam_gather": options.beam_gather,
        "static": asdict(options.static) if options.static else None,
        "judge": options.judge and options.weights.kind != "f32",
        "tokenizer": str(tokenizer),
    }


def _build_all(
    work: Work, task: dict[str, Any], sizes: Mapping[tuple[int, int], int], say: Say, run: Run
) -> list[Piece]:
    """`sizes`: bytes expected of every range, by which the time left is told."""
    began, built, check = time.monotonic(), 0, list(sizes)
    left = sum(size for index, size in enumerate(sizes.values()) if index not in work.done)
    for index, ((first, last), size) in enumerate(sizes.items()):
        if index in work.done:
            continue
        piece = _build_one({**task, "index": index, "first": first, "last": last, "check": check}, work, run)
        check = []
        work.add(index, piece)
        built, left = built + size, left - size
        minutes = (time.monotonic() - began) / built * left / 60
        rest = f"; about {_minutes(minutes)} left" if left else ""
        weight, peak = show_size(piece.stage.weight_bytes), show_size(piece.peak)
        say(f"stage {index}: layers [{first}, {last}), {weight}, took up to {peak} of memory{rest}")
    return [work.done[index] for index in range(len(sizes))]


def _build_one(task: Mapping[str, Any], work: Work, run: Run) -> Piece:
    """One stage, in two or three processes: none holds what the others need."""
    index = task["index"]
    fresh, target = work.folder / "fresh", work.folder / "split"
    for path in (fresh, target / f"stage{index}"):
        shutil.rmtree(path, ignore_errors=True)
    converted = run({**task, "task": "convert", "target": str(fresh)})
    places = {"source": str(fresh), "scratch": str(fresh / "compressed"), "target": str(target)}
    stored = run({**task, "task": "store", **places})
    judged = {"peak": 0}
    if task["judge"]:
        judged = run({**task, "task": "judge", **places, "values": str(work.folder)})
    shutil.rmtree(fresh)
    peak = max(answer["peak"] for answer in (converted, stored, judged))
    return read_piece({"quality": {}, **stored, **judged, "peak": peak})


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
    if weights.looks_at_data:
        raise CannotSliceError("--awq sends texts through all layers")


def _with_tokenizer(folder: Path, work: Path) -> Path:
    """A folder with tokenizer.json and the configuration: the model's own, or one in which it was converted."""
    if (folder / "tokenizer.json").is_file():
        return folder
    from transformers import AutoTokenizer  # noqa: PLC0415

    target = work / "tokenizer"
    load: Any = AutoTokenizer
    load.from_pretrained(folder, local_files_only=True).save_pretrained(target)
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
