# pyright: basic
"""Write a model as shards: cut, store, describe."""

import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import openvino as ov

from engine.contract.errors import CutError, UsageError
from engine.contract.manifest import SCHEMA, Manifest, StageManifest, digest_file
from engine.contract.static import StaticLimits
from export_tools.compress import AS_THEY_ARE, WeightOptions, compress_source
from export_tools.passes.beam_gather import inject_beam_gather, remove_beam_gather
from export_tools.passes.boundaries import find_boundaries
from export_tools.passes.cut import cut
from export_tools.passes.graph import kind
from export_tools.passes.head import find_head
from export_tools.passes.static import static_shapes, to_static
from export_tools.plan import Weights, even_plan, explicit_plan
from export_tools.quality import compare_logits, pass_through, single_layers, token_ids
from export_tools.sources.source import Source
from export_tools.texts import TEXTS, tokenize
from export_tools.weigh import weigh

F32_BYTES: Final = 4
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOptions:
    """What the user wants."""

    out: Path
    stages: int
    layers: tuple[int, ...] = ()  # explicit layers per stage, instead of an even plan
    name: str = ""
    beam_gather: bool = True
    weights: WeightOptions = AS_THEY_ARE
    force: bool = False
    static: StaticLimits | None = None  # for the static runner too
    judge: bool = False  # measure what compression cost, for the manifest

    def check_target(self) -> None:
        """Raise UsageError when the target is there and may not be replaced; before any work is done."""
        if self.out.exists() and not self.force:
            raise UsageError(f"{self.out} exists: choose another --out, or --force to replace it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the manifest says of a model and only its graph knows."""

    layers: int
    hidden_size: int
    vocabulary: int
    kv_bytes_per_token: int  # f32, all layers


def split(source: Source, options: SplitOptions, say: Say) -> Manifest:
    """Write the split to `options.out`, all of it or nothing. Raises UsageError, CutError."""
    options.check_target()
    if options.static:
        options.static.check(source.context_length)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    core = ov.Core()
    with tempfile.TemporaryDirectory(
        prefix=f".{options.out.name}-", dir=options.out.parent, ignore_cleanup_errors=True
    ) as temporary:
        original = source
        if options.weights.kind != "f32":
            say(f"compressing its weights to {options.weights.kind}")
            source = compress_source(source, options.weights, Path(temporary) / "compressed")
        whole = core.read_model(source.model)
        weights = weigh(whole)
        plan = plan_ranges(weights, options)
        folder = Path(temporary) / "split"
        folder.mkdir()
        stages = []
        for index, (first, last) in enumerate(plan):
            stages.append(write_stage(core, source, folder, index, first, last, options.beam_gather))
            if options.static:
                check_static(core, folder / stages[-1].model, options.static, last=last == plan[-1][1])
            size = stages[-1].weight_bytes / 2**20
            say(f"stage {index}: layers [{first}, {last}), {size:.0f} MiB")
        quality = {}
        if options.judge and options.weights.kind != "f32":
            say("measuring what that cost")
            quality = _judge(original, [folder / stage.model for stage in stages], len(weights.layers))
        return finish(folder, source, facts_of(whole), weights, tuple(stages), options, quality)


def _judge(source: Source, shards: list[Path], layers: int) -> dict[str, Any]:
    folder = source.tokenizer_files[0].parent
    ids = token_ids([tokenize(folder, source.tokenizer_kind, text) for text in TEXTS])
    theirs = pass_through(single_layers(source.model, 0, layers), ids)
    ours = pass_through((ov.Core().read_model(path) for path in shards), ids)
    return compare_logits(theirs, ours, ids).as_dict()


def finish(
    folder: Path,
    source: Source,
    facts: Facts,
    weights: Weights,
    stages: tuple[StageManifest, ...],
    options: SplitOptions,
    quality: dict[str, Any],
) -> Manifest:
    """Add tokenizer and manifest to the stages in `folder`, and move it to where it was wanted."""
    manifest = replace(
        _manifest(facts, source, folder, stages, options),
        weights={} if options.weights.kind == "f32" else options.weights.as_dict(),
        layer_bytes=weights.layers,
        embedding_bytes=weights.embedding,
        head_bytes=weights.head,
        quality=quality,
    )
    manifest.save(folder)
    if options.out.exists():
        shutil.rmtree(options.out)
    folder.rename(options.out)
    return manifest


def plan_ranges(weights: Weights, options: SplitOptions) -> tuple[tuple[int, int], ...]:
    """The layers of each stage, as the user wants them. Raises UsageError."""
    if not options.layers:
        return even_plan(weights, options.stages)
    if options.stages not in (0, len(options.layers)):
        raise UsageError(f"--stages {options.stages} but --layers names {len(options.layers)} stages")
    return explicit_plan(options.layers, len(weights.layers))


def write_stage(
    core: ov.Core, source: Source, folder: Path, index: int, first: int, last: int, beam_gather: bool
) -> StageManifest:
    """Cut the layers [first, last) of the source into `folder`/stage`index`."""
    shard = cut(lambda: core.read_model(source.model), first, last)
    if beam_gather:
        inject_beam_gather(shard)
    else:
        remove_beam_gather(shard)
    target = folder / f"stage{index}" / "openvino_model.xml"
    target.parent.mkdir(parents=True)
    ov.save_model(shard, target, compress_to_fp16=False)
    files = tuple(digest_file(folder, path) for path in (target, target.with_suffix(".bin")))
    return StageManifest(
        index=index,
        first_layer=first,
        last_layer=last,
        model=target.relative_to(folder).as_posix(),
        files=files,
        weight_bytes=files[1].bytes,
    )


def check_static(core: ov.Core, path: Path, limits: StaticLimits, *, last: bool) -> None:
    """The shard as it was written, weights compressed, takes its fixed shapes. Raises CutError."""
    for shape in static_shapes(limits, kv="f32"):
        to_static(core.read_model(path), shape, last=last)


def facts_of(model: ov.Model) -> Facts:
    """Of a model, or of a range of its layers with a head."""
    return Facts(
        layers=len(find_boundaries(model).attention),
        hidden_size=_length(list(find_head(model).get_input_partial_shape(0))[-1], "hidden size"),
        vocabulary=_length(list(model.output(0).get_partial_shape())[-1], "vocabulary"),
        kv_bytes_per_token=kv_bytes_per_token(model),
    )


def _manifest(
    facts: Facts, source: Source, folder: Path, stages: tuple[StageManifest, ...], options: SplitOptions
) -> Manifest:
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir(exist_ok=True)
    for path in source.tokenizer_files:
        shutil.copyfile(path, tokenizer / path.name)
    name = options.name or source.name
    return Manifest(
        schema=SCHEMA,
        name=name,
        slug=slug_of(name),
        source=str(source.path.resolve()),
        source_digest=source.digest,
        split=split_digest(stages),
        layers=facts.layers,
        hidden_size=facts.hidden_size,
        vocabulary=facts.vocabulary,
        context_length=source.context_length,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        beam_gather=options.beam_gather,
        stages=stages,
        tokenizer_kind=source.tokenizer_kind,
        tokenizer_files=tuple(digest_file(folder, path) for path in sorted(tokenizer.iterdir())),
        chat_template=source.chat_template,
        eos_ids=source.eos_ids,
        bos_id=source.bos_id,
        generation_defaults=source.generation_defaults,
        static=options.static,
        versions={"openvino": ov.__version__, "shardline": version("shardline")},
    )


def split_digest(stages: tuple[StageManifest, ...]) -> str:
    """What only workers of one split have in common."""
    return hashlib.sha256("".join(f.sha256 for stage in stages for f in stage.files).encode()).hexdigest()


def kv_bytes_per_token(model: ov.Model) -> int:
    """Bytes that one token takes in all caches of a model, in f32."""
    total = 0
    for node in model.get_ops():
        if kind(node) == "ReadValue":
            dims = list(node.get_output_partial_shape(0))[1:]
            size = F32_BYTES
            for dim in dims:
                size *= 1 if dim.is_dynamic else dim.get_length()
            total += size
    return total


def slug_of(name: str) -> str:
    """A name that may stand in a subject: lower case, [a-z0-9_-]. Raises UsageError when nothing is left."""
    slug = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")[:64]
    if not slug:
        raise UsageError(f"no name can be made of {name!r}: give one with --name")
    return slug


def _length(dimension: ov.Dimension, what: str) -> int:
    if dimension.is_dynamic:
        raise CutError(f"the {what} of this model is not fixed")
    return dimension.get_length()
