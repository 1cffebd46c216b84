"""Every family stage by stage: the same numbers as cut out of the whole, or a reason to export it whole."""

import json
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from export_tools.compress import WeightOptions
from export_tools.sliced.build import build_sliced
from export_tools.sliced.checkpoint import CannotSliceError
from export_tools.sliced.process import checked
from export_tools.sliced.worker import answer
from export_tools.split import SplitOptions
from tests.families.parity import largest, run, split_into
from tests.families.test_build import save, save_tokenizer
from tests.families.test_parity import FAMILIES

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore")]
OLDER = ("gemma2", "gemma3")  # are converted under transformers 5.0 only


def here(job: Mapping[str, Any]) -> dict[str, Any]:
    """The worker without a process of its own, for seconds instead of minutes."""
    return checked(json.loads(json.dumps(answer(json.loads(json.dumps(job))))))


def sliced(folder: Path, out: Path, layers: tuple[int, ...], **weights: Any) -> Path:
    options = SplitOptions(out=out, stages=0, layers=layers, weights=WeightOptions(**weights))
    build_sliced(folder, options, lambda _: None, here)
    return out


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in OLDER])
def test_stages_built_alone_compute_what_the_whole_computes(family: str, tmp_path: Path) -> None:
    from tests.families.models import convert, random_model  # noqa: PLC0415

    model = random_model(family)
    layers = model.config.num_hidden_layers
    save(model, tmp_path / "model")
    cuts = (1, layers - 2, 1) if layers > 2 else (1, 1)
    built = sliced(tmp_path / "model", tmp_path / "sliced", cuts)
    convert(model, tmp_path / "whole")
    whole, tokens = run(split_into(tmp_path / "whole", tmp_path / "split", [layers]), "paged")
    logits, again = run(built, "paged")
    assert again == tokens
    assert largest(whole, logits) == 0


@pytest.mark.parametrize("family", ["llama", "llama-untied"])
@pytest.mark.parametrize("weights", [{"kind": "f16"}, {"kind": "int8"}, {"kind": "int4", "group_size": 32}])
def test_weights_of_16_bits_are_compressed_like_those_of_32(
    family: str, weights: dict[str, Any], tmp_path: Path
) -> None:
    import torch  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    from tests.families.models import random_model  # noqa: PLC0415

    model = random_model(family).to(torch.bfloat16)
    layers = model.config.num_hidden_layers
    save(model, tmp_path / "half")
    save(model.to(torch.float32), tmp_path / "full")
    half, tokens = run(sliced(tmp_path / "half", tmp_path / "a", (1, layers - 1), **weights), "paged")
    full, again = run(sliced(tmp_path / "full", tmp_path / "b", (1, layers - 1), **weights), "paged")
    assert tokens == again
    assert largest(half, full) == 0


def test_quality_stage_by_stage_is_that_of_the_whole(tmp_path: Path) -> None:
    from export_tools.sources.open import open_source  # noqa: PLC0415
    from export_tools.split import split  # noqa: PLC0415
    from tests.families.models import random_model  # noqa: PLC0415

    save(random_model("llama-untied"), tmp_path / "model")
    weights = WeightOptions(kind="int4", group_size=32)
    first, second = (
        SplitOptions(out=tmp_path / name, stages=0, layers=(2, 4, 1), weights=weights, judge=True) for name in "ab"
    )
    built = build_sliced(tmp_path / "model", first, lambda _: None, here)
    with open_source(tmp_path / "model") as source:
        whole = split(source, second, lambda _: None)
    assert whole.quality["divergence"] > 0
    assert built.quality == pytest.approx(whole.quality, rel=1e-3)


def test_windows_that_alternate_are_cut_with_their_layers(tmp_path: Path) -> None:
    from transformers import Qwen3Config  # noqa: PLC0415

    from tests.families.models import build, convert, sizes  # noqa: PLC0415

    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    model = build(Qwen3Config(**sizes(5, head_dim=16), layer_types=kinds, use_sliding_window=True, sliding_window=8))
    save(model, tmp_path / "model")
    convert(model, tmp_path / "whole")
    whole, tokens = run(split_into(tmp_path / "whole", tmp_path / "split", [5]), "paged")
    logits, again = run(sliced(tmp_path / "model", tmp_path / "sliced", (1, 2, 2)), "paged")
    assert again == tokens
    assert largest(whole, logits) == 0


def test_layers_that_compute_with_their_own_number_are_exported_whole(tmp_path: Path) -> None:
    from transformers import GPT2Config  # noqa: PLC0415

    from tests.families.models import build  # noqa: PLC0415

    config = GPT2Config(vocab_size=320, n_embd=64, n_layer=4, n_head=4, scale_attn_by_inverse_layer_idx=True)
    save(build(config), tmp_path / "model")
    with pytest.raises(CannotSliceError, match="their own number"):
        sliced(tmp_path / "model", tmp_path / "out", (2, 2))


def test_layers_that_are_built_otherwise_without_the_others_are_exported_whole(tmp_path: Path) -> None:
    from transformers import Qwen3MoeConfig  # noqa: PLC0415

    from tests.families.models import build, sizes  # noqa: PLC0415

    config = Qwen3MoeConfig(
        **sizes(4, head_dim=16), num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, decoder_sparse_step=3
    )
    save(build(config), tmp_path / "model")
    with pytest.raises(CannotSliceError, match=r"layers.*mlp is another one"):
        sliced(tmp_path / "model", tmp_path / "out", (1, 1, 1, 1))


def test_a_model_larger_than_memory_is_built(tmp_path: Path) -> None:
    """Weights of 2.4 GB in 16 bits where a process may have 2 GB of its own; at once that fails."""
    from bench.models import Shape, write_model  # noqa: PLC0415

    shape = Shape(
        hidden=2048, layers=20, heads=32, kv_heads=8, inner=8192, tied=False, rope_factor=32.0, vocabulary=2048
    )
    folder, limit = tmp_path / "model", 2_000_000_000
    write_model(shape, folder)
    save_tokenizer(folder, 2048)
    assert sum(file.stat().st_size for file in folder.glob("*.safetensors")) > limit

    def build(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "export_tools.cli", "build", str(folder), "--weights", "int4", *words]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
        )

    built = build("--out", str(tmp_path / "out"), "--stages", "5", "--no-quality")
    assert built.returncode == 0, built.stderr
    assert built.stderr.count("of memory") == 5
    assert build("--out", str(tmp_path / "whole"), "--stages", "5", "--no-quality", "--at-once").returncode != 0
