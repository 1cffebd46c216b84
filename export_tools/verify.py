# pyright: basic
"""Does a split compute what its source computes? Digests, the chain against the whole, the attention fusion."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.contract.errors import ManifestError
from engine.contract.manifest import Manifest, check_files, load_manifest
from export_tools.compress import WeightOptions
from export_tools.narrow import narrow_stage
from export_tools.passes.fusion import Fusion, read_fusion
from export_tools.sources.open import open_source
from export_tools.split import SplitOptions, split
from export_tools.texts import tokenize as tokenize_by
from stages.chain import Chain, generate, make_rows
from stages.draft_load import read_head_tokens
from stages.settings import RunnerOptions

TEXTS: Final = (
    "The lighthouse keeper climbed the stairs every evening, lit the lamp and wrote down the names of the ships.",
    "def factorial(n):\n    return 1 if n < 2 else n * factorial(n - 1)\n",
    "Ein Netz aus kleinen Rechnern kann ein großes Modell bedienen, wenn jeder nur einen Teil davon trägt.",
)
GREEDY_TOKENS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found."""

    stages: int
    runner: str
    profile: str
    positions: int  # compared over the vocabulary
    largest_difference: float  # of logits, absolute
    tokens_equal: bool  # greedy, all of them
    greedy_tokens: int
    fused: tuple[int, ...]  # layers with fused or paged attention, per stage
    layers: tuple[int, ...]  # layers per stage
    operations_equal: bool  # the chain's compiled operations of the kinds that fuse, against the whole's

    @property
    def good(self) -> bool:
        """Whether the split may serve: same tokens, and every attention as fast as it should be."""
        return self.tokens_equal and (self.runner == "static" or self.fused == self.layers)  # nothing to fuse there

    def as_dict(self) -> dict[str, Any]:
        """For scripts."""
        return {**asdict(self), "good": self.good}


def verify(folder: Path, options: RunnerOptions, against: Path | None) -> Report:
    """Check files, then compare with the source. Raises ManifestError, UsageError, DeviceError."""
    manifest = load_manifest(folder)
    for stage in manifest.stages:
        check_files(folder, stage.files)
    check_files(folder, manifest.tokenizer_files)
    with tempfile.TemporaryDirectory(prefix="shardline-verify-", ignore_cleanup_errors=True) as temporary:
        whole = _whole(folder, manifest, against, Path(temporary) / "whole")
        return compare(folder, whole, manifest, options)


def _whole(folder: Path, manifest: Manifest, against: Path | None, target: Path) -> Path:
    """The source as a split of one stage; with a head as narrow as that of a draft."""
    source_path = against or Path(manifest.source)
    if not source_path.exists():
        raise ManifestError(f"the source {source_path} is not here: name it with --against")
    with open_source(source_path) as source:
        if source.digest != manifest.source_digest:
            raise ManifestError(f"{source_path} is not what this split was made from (sha256 differs)")
        options = SplitOptions(out=target, stages=1, name=manifest.name, beam_gather=manifest.beam_gather)
        options = replace(options, weights=WeightOptions(**manifest.weights))  # as the split was compressed
        whole = split(source, options, lambda _: None)
    if (head := read_head_tokens(folder, manifest.stages[0])) is not None:
        narrow_stage(target, whole, head)
    return target


def compare(folder: Path, whole: Path, manifest: Manifest, options: RunnerOptions) -> Report:
    """The chain in `folder` against the one-stage split in `whole`, on the same runner and settings.

    Static shards are compared with the stateful whole, as far as their slots and context go.
    """
    prompts, count = [tokenize(folder, manifest, text) for text in TEXTS], GREEDY_TOKENS
    against = options
    if options.kind == "static" and (limits := manifest.static):
        against, count = replace(options, kind="stateful"), min(count, limits.context // 2)
        prompts = [prompt[: limits.context - count] for prompt in prompts[: limits.slots]]
    with Chain.open(whole, against) as reference:
        expected = [_logits(reference, prompt) for prompt in prompts]
        least = reference.runners[0].capabilities.min_row_tokens
        tokens = generate(reference, prompts, count, min_row_tokens=least)
        whole_operations = _kinds(reference)
    with Chain.open(folder, options) as chain:
        found = [_logits(chain, prompt) for prompt in prompts]
        same = generate(chain, prompts, count, min_row_tokens=least) == tokens
        operations = _kinds(chain)
        fused = tuple(max(f.fused, f.paged) for f in map(_fusion, chain.runners))
    return Report(
        stages=len(manifest.stages),
        runner=options.kind,
        profile=options.profile,
        positions=sum(len(prompt) for prompt in prompts),
        largest_difference=max(float(np.abs(a - b).max()) for a, b in zip(expected, found, strict=True)),
        tokens_equal=same,
        greedy_tokens=count * len(prompts),
        fused=fused,
        layers=tuple(stage.last_layer - stage.first_layer for stage in manifest.stages),
        operations_equal=operations == whole_operations,
    )


def _logits(chain: Chain, prompt: Sequence[int]) -> np.ndarray:
    rows = make_rows([(0, 0, len(prompt), 0, len(prompt))], chain.block_size)
    return chain.infer(rows, np.array(prompt, np.int32)).copy()


def _fusion(runner: Any) -> Fusion:
    return read_fusion(runner.compiled)


def _kinds(chain: Chain) -> dict[str, int]:
    """Operations whose number a cut must not change: what fusions make."""
    total: dict[str, int] = {}
    for runner in chain.runners:
        for kind, count in _fusion(runner).operations.items():
            if kind in ("FullyConnected", "RMS", "RoPE", "MVN", "ScaledDotProductAttention", "PagedAttention"):
                total[kind] = total.get(kind, 0) + count
    return total


def tokenize(folder: Path, manifest: Manifest, text: str) -> list[int]:
    """Token ids of a text by the split's own tokenizer."""
    return tokenize_by(folder / "tokenizer", manifest.tokenizer_kind, text)
