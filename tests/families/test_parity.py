"""Every family that is promised: transformers, the whole and all cuts give the same, on both runners."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from engine.contract.errors import CutError
from tests.families.parity import PROMPTS, largest, reference, run, split_into

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore")]
FAMILIES = (
    "llama",
    "llama-untied",
    "llama3-rope",
    "mistral",
    "qwen2",
    "qwen2-biases",
    "qwen3",
    "qwen3-yarn",
    "phi3",
    "phi3-longrope",
    "gpt2",
    "olmo2",
    "granite",
    "mixtral",
    "qwen3-moe",
    "gpt-neox",
    "falcon",
    "bloom",
    "stablelm",
    "gemma2",
    "gemma3",
)
BOUND = 3e-5  # of the largest logit: transformers against OpenVINO, both f32
# Where an attention of theirs is a shard's only one, the plugin rounds the last bit otherwise (stateful only).
ROUNDED = {("gemma2", "stateful"): 5e-6, ("gemma3", "stateful"): 5e-6}


@dataclass(frozen=True)
class Family:
    name: str
    folder: Path
    layers: int
    logits: list[np.ndarray]  # by transformers
    tokens: list[list[int]]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    from tests.families.models import export  # noqa: PLC0415  torch

    folder = tmp_path_factory.mktemp(request.param)
    model = export(request.param, folder)
    return Family(request.param, folder, model.config.num_hidden_layers, *reference(model))


@pytest.fixture(params=["paged", "stateful"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def shards(family: Family, tmp_path: Path) -> Callable[..., Path]:
    def make(*layers: int) -> Path:
        return split_into(family.folder, tmp_path / "-".join(map(str, layers)), layers)

    return make


def test_the_whole_computes_what_transformers_computes_and_every_chain_the_same(
    family: Family, shards: Callable[..., Path], kind: str
) -> None:
    whole, tokens = run(shards(family.layers), kind)
    assert largest(whole, family.logits) < BOUND * max(float(np.abs(logits).max()) for logits in family.logits)
    assert tokens == family.tokens
    chains = [(at, family.layers - at) for at in range(1, family.layers)]
    for layers in dict.fromkeys([*chains, (1,) * family.layers]):
        logits, again = run(shards(*layers), kind)
        assert largest(whole, logits) <= ROUNDED.get((family.name, kind), 0), layers
        assert again == tokens, layers


def test_the_prompts_pass_the_windows() -> None:
    assert sorted(len(prompt) for prompt in PROMPTS) == [6, 9, 30]


@pytest.mark.parametrize(("name", "state"), [("lfm2", "past.conv.0"), ("mamba", "past.ssm")])
def test_layers_without_a_kv_cache_are_refused_by_name(name: str, state: str, tmp_path: Path) -> None:
    from tests.families.models import export  # noqa: PLC0415

    export(name, tmp_path / "whole")
    for layers in ([1, 1], [2]):
        with pytest.raises(CutError, match=state):
            split_into(tmp_path / "whole", tmp_path / "shards", layers)
        assert not (tmp_path / "shards").exists()
