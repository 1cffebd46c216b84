"""Which families can be static: as the stateful shards compute them, or refused by the name of what is in the way."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.contract.errors import CutError
from engine.contract.manifest import load_manifest
from engine.contract.static import StaticLimits
from stages.chain import Chain, generate, make_rows
from stages.loader import load_runner
from stages.settings import RunnerOptions
from tests.families.parity import FOLLOWING, GREEDY, PROMPTS, largest, split_into

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore")]
LIMITS = StaticLimits(context=64, slots=4, verify_tokens=4, prefill_chunk=16)
NEAR = 1e-4  # logits


def run(shards: Path, kind: Any) -> tuple[Sequence[np.ndarray], list[list[int]]]:
    """Logits of prompts, decodes and verifies; then greedy tokens of all prompts side by side."""
    manifest = replace(load_manifest(shards), static=LIMITS)
    options = RunnerOptions(kind=kind, slots=4)
    with Chain([load_runner(shards, manifest, i, options) for i in range(len(manifest.stages))]) as chain:
        logits = []
        for slot, prompt in enumerate(PROMPTS):
            at = 0
            for tokens in (prompt, *FOLLOWING):
                rows = make_rows([(slot, at, len(tokens), 0, len(tokens))], 0)
                logits.append(chain.infer(rows, np.array(tokens, np.int32)).copy())
                at += len(tokens) - (tokens is FOLLOWING[1])  # its last token is rejected
        return logits, generate(chain, PROMPTS, GREEDY, min_row_tokens=1)


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "llama-untied",
        "llama3-rope",
        "qwen2",
        "qwen2-biases",
        "qwen3",
        "qwen3-yarn",
        "phi3",
        "gpt2",
        "olmo2",
        "granite",
    ],
)
def test_static_shards_compute_what_stateful_ones_do(family: str, tmp_path: Path) -> None:
    from tests.families.models import export  # noqa: PLC0415  torch

    layers = export(family, tmp_path / "whole").config.num_hidden_layers
    shards = split_into(tmp_path / "whole", tmp_path / "shards", (1, layers - 1))
    (logits, tokens), (wanted, theirs) = run(shards, "static"), run(shards, "stateful")
    assert largest(logits, wanted) < NEAR
    assert tokens == theirs


@pytest.mark.parametrize(
    ("family", "says"), [("mistral", "a sliding window"), ("phi3-longrope", "reads the positions of all tokens")]
)
def test_what_would_be_computed_wrongly_is_refused(family: str, says: str, tmp_path: Path) -> None:
    from tests.families.models import export  # noqa: PLC0415

    layers = export(family, tmp_path / "whole").config.num_hidden_layers
    with pytest.raises(CutError, match=says):
        run(split_into(tmp_path / "whole", tmp_path / "shards", (layers,)), "static")
