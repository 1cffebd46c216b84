# pyright: reportMissingImports=false
"""A family's model by transformers, whole by OpenVINO, and in shards: logits and greedy tokens of each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export_tools.sources.source import Source
from export_tools.split import SplitOptions, split
from stages.chain import Chain, generate, make_rows
from stages.settings import MIB, RunnerOptions

PROMPTS = tuple(np.random.default_rng(0).integers(3, 300, count).tolist() for count in (6, 9, 30))  # window: 8
FOLLOWING = ([5, 6], [9, 8, 7], [11, 12])  # a decode row, a verify row, a decode row behind rejected drafts
GREEDY = 20
CONTEXT = 512


def split_into(folder: Path, out: Path, layers: Sequence[int]) -> Path:
    """The IR in `folder` in shards of these layers."""
    source = Source(
        path=folder,
        model=folder / "openvino_model.xml",
        name="family",
        tokenizer_kind="huggingface",
        tokenizer_files=(),
        chat_template="",
        eos_ids=(2,),
        bos_id=1,
        context_length=CONTEXT,
        digest="",
    )
    split(source, SplitOptions(out=out, stages=0, layers=tuple(layers)), lambda _: None)
    return out


def run(shards: Path, kind: Any) -> tuple[list[np.ndarray], list[list[int]]]:
    """Logits of prompts, decodes and verifies, all positions; then greedy tokens of all prompts side by side."""
    options = RunnerOptions(kind=kind, profile="exact", kv_bytes=16 * MIB, slots=4)
    with Chain.open(shards, options) as chain:
        logits = []
        for slot, prompt in enumerate(PROMPTS):
            at = 0
            for tokens in (prompt, *FOLLOWING):
                rows = make_rows([(slot, at, len(tokens), 0, len(tokens))], chain.block_size)
                logits.append(chain.infer(rows, np.array(tokens, np.int32)).copy())
                at += len(tokens) - (tokens is FOLLOWING[1])  # its last token is rejected
        least = chain.runners[0].capabilities.min_row_tokens
        return logits, generate(chain, PROMPTS, GREEDY, min_row_tokens=least)


def reference(model: Any) -> tuple[list[np.ndarray], list[list[int]]]:
    """The same by transformers; the logits without a cache."""
    import torch  # noqa: PLC0415

    logits, greedy = [], []
    with torch.no_grad():
        for prompt in PROMPTS:
            held: list[int] = []
            for tokens in (prompt, *FOLLOWING):
                ids = [*held, *tokens]
                logits.append(model(torch.tensor([ids]), use_cache=False).logits[0, len(held) :].numpy())
                held = ids[: len(ids) - (tokens is FOLLOWING[1])]
            ids = list(prompt)
            for _ in range(GREEDY):
                ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
            greedy.append(ids[len(prompt) :])
    return logits, greedy


def largest(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """Largest absolute difference of logits."""
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))
