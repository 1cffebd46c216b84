# pyright: basic
"""What a process of its own does for one stage, so that its memory is free again when it ends.

    python -m export_tools.sliced.worker '{"task": "convert", ...}'      # torch: layers to an IR
    python -m export_tools.sliced.worker '{"task": "store", ...}'        # no torch model: compress, cut, write
    python -m export_tools.sliced.worker '{"task": "judge", ...}'        # what compression cost

Prints one JSON object: what was found, the peak of its resident memory in bytes, or an error.
"""

import json
import re
import resource
import shutil
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from engine.contract.errors import ShardlineError
from engine.contract.manifest import digest_file
from engine.contract.static import StaticLimits
from export_tools.compress import WeightOptions, compress_source
from export_tools.quality import compare_logits, load_values, pass_through, save_values, single_layers, token_ids
from export_tools.sliced.checkpoint import CannotSliceError, read_checkpoint
from export_tools.sources.source import Source
from export_tools.split import check_static, facts_of, kv_bytes_per_token, write_stage
from export_tools.texts import TEXTS, tokenize
from export_tools.weigh import weigh

LAYER_LISTS: Final = "(?:layers|h|blocks)"  # what families call the list of their layers
KILO: Final = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


def convert(job: dict[str, Any]) -> dict[str, Any]:
    """Layers [first, last) and their neighbours as an IR in `target`. Raises CannotSliceError."""
    try:
        _convert(job)
    except (ValueError, KeyError, RuntimeError, OSError) as error:
        if isinstance(error, RuntimeError) and "memory" in str(error):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise CannotSliceError(f"its layers cannot be converted alone: {reason}") from error
    return {}


def _convert(job: dict[str, Any]) -> None:
    from optimum.exporters.openvino import export_from_model  # type: ignore # noqa: PLC0415  torch
    from optimum.intel import OVConfig  # type: ignore # noqa: PLC0415
    from transformers import AutoConfig  # noqa: PLC0415

    from export_tools.sliced.model import load_range, neighbours  # noqa: PLC0415
    from export_tools.sliced.structure import check_structure  # noqa: PLC0415
    from export_tools.sources.huggingface import TASK  # noqa: PLC0415

    folder, first, last = Path(job["folder"]), job["first"], job["last"]
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    checkpoint = read_checkpoint(folder, job["layers"])
    prefix = next(tensor.prefix for tensor in checkpoint.tensors if tensor.layer is not None)
    check_structure(config, [neighbours(a, b, checkpoint.layers) for a, b in job["check"]], prefix)
    half = checkpoint.sixteen_bits and job["weights"]["kind"] != "f32"
    try:
        model = load_range(checkpoint, config, first, last, half=half)
    except OverflowError:  # a bfloat16 beyond float16
        half = False
        model = load_range(checkpoint, config, first, last, half=half)
    export_from_model(
        model,
        output=Path(job["target"]),
        task=TASK,
        stateful=True,
        patch_16bit_model=half,
        ov_config=OVConfig(dtype="fp32"),  # as they are
    )


def store(job: dict[str, Any]) -> dict[str, Any]:
    """Compress the IR in `source` and cut stage `index` out of it into `target`: {stage, facts, weights}."""
    import openvino as ov  # noqa: PLC0415

    folder, scratch = Path(job["source"]), Path(job["scratch"])
    source = Source(
        path=folder,
        model=folder / "openvino_model.xml",
        name="",
        tokenizer_kind="huggingface",
        tokenizer_files=(),
        chat_template="",
        eos_ids=(),
        bos_id=None,
        context_length=0,
        digest="",
    )
    index, first, last = job["index"], job["first"], job["last"]
    begin = max(first - 1, 0)
    outside = [at for at in (first - 1, last) if 0 <= at < job["layers"]]  # cut away: not worth compressing
    leave = [rf".*\b{LAYER_LISTS}\.{at - begin}\..*" for at in outside]
    source = compress_source(source, WeightOptions(**job["weights"]), scratch, leave)
    core = ov.Core()
    target = Path(job["target"])
    stage = write_stage(core, source, target, index, first - begin, last - begin, job["beam_gather"])
    path = target / stage.model
    if limits := job["static"]:
        check_static(core, path, StaticLimits(**limits), last=last == job["layers"])
    renumber(path, begin)
    files = tuple(digest_file(target, file) for file in (path, path.with_suffix(".bin")))
    stage = replace(stage, first_layer=first, last_layer=last, files=files)
    piece = core.read_model(source.model)
    weights = weigh(piece)
    shutil.rmtree(scratch, ignore_errors=True)
    return {
        "stage": asdict(stage),
        "facts": asdict(replace(facts_of(piece), kv_bytes_per_token=kv_bytes_per_token(core.read_model(path)))),
        "layers": weights.layers[first - begin : last - begin],
        "embedding": weights.embedding if first == 0 else 0,
        "head": weights.head if last == job["layers"] else 0,
    }


def judge(job: dict[str, Any]) -> dict[str, Any]:
    """Pass the texts through the layers in `source` and through the finished stage; behind the last: {quality}.

    What they have come to is kept in `values` for the next stage; nothing is found when the one before kept nothing.
    """
    import openvino as ov  # noqa: PLC0415

    index, first, last, values = job["index"], job["first"], job["last"], Path(job["values"])
    before = values / f"values{index - 1}.npz"
    if first == 0:
        ids = token_ids([tokenize(Path(job["tokenizer"]), "huggingface", text) for text in TEXTS])
        theirs = ours = ids
    elif before.is_file():
        ids, theirs, ours = (load_values(before, side) for side in ("ids", "theirs", "ours"))
    else:
        return {}
    begin = max(first - 1, 0)
    layers = single_layers(Path(job["source"]) / "openvino_model.xml", first - begin, last - begin)
    theirs = pass_through(layers, theirs)
    ours = pass_through([ov.Core().read_model(Path(job["target"]) / f"stage{index}" / "openvino_model.xml")], ours)
    if last == job["layers"]:
        return {"quality": compare_logits(theirs, ours, ids).as_dict()}
    save_values(values / f"values{index}.npz", ids=ids, theirs=theirs, ours=ours)
    return {}


def renumber(path: Path, shift: int) -> None:
    """Give states and operations of a shard the numbers of their layers in the whole model."""
    if shift:
        pattern = re.compile(rf"((?:past_key_values|present|\b{LAYER_LISTS})\.)(\d+)\b")
        text = path.read_text(encoding="utf-8")
        path.write_text(pattern.sub(lambda m: f"{m[1]}{int(m[2]) + shift}", text), encoding="utf-8")


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Do a job: what was found and the peak of memory, or the error that was met."""
    try:
        found = {"convert": convert, "store": store, "judge": judge}[job["task"]](job)
    except ShardlineError as error:
        found = {"error": type(error).__name__, "message": str(error)}
    return {**found, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILO}


def main() -> None:
    """Do the job that the first argument names."""
    with redirect_stdout(sys.stderr):
        found = answer(json.loads(sys.argv[1]))
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
