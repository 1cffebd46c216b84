"""The oracle of the whole system on the real model: ten prompts, 128 greedy tokens each, in f32.

stateful: 1 == 2 == 3 stages == the whole model in openvino-genai.
paged, exact: 1 == 2 == 3 stages (one stage is the uncut model on the same runner), alone == beside others, replayed ==
undisturbed. The two runners use different attention kernels: their logits are close, and where their tokens differ the
two best candidates are as close.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from export_tools.sources.open import open_source
from stages.chain import Chain, generate, make_rows
from stages.settings import RunnerOptions
from tests.conftest import Shards
from tests.system.prompts import PROMPTS

pytestmark = pytest.mark.model
COUNT = 128
THREADS = 2
Tokens = list[list[int]]


def options(kind: str, **changes: object) -> RunnerOptions:
    return RunnerOptions(kind=kind, threads=THREADS, slots=10, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole_model(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokens, Tokens]:
    """Prompt ids, and greedy tokens of the whole model in openvino-genai."""
    import openvino_genai as genai  # noqa: PLC0415  seconds, and only here

    with open_source(demo_model) as source:
        settings = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": THREADS}
        folder = source.model.parent
        pipeline = genai.LLMPipeline(str(folder), "CPU", ATTENTION_BACKEND="SDPA", **settings)
        tokenizer = pipeline.get_tokenizer()
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = COUNT, True, False
        ids: Tokens = []
        tokens: Tokens = []
        for prompt in PROMPTS:
            inputs = tokenizer.encode(prompt, add_special_tokens=False)
            ids.append(inputs.input_ids.data[0].tolist())
            tokens.append(list(pipeline.generate(inputs, config).tokens[0]))
    return ids, tokens


@pytest.fixture(scope="module")
def prompt_ids(whole_model: tuple[Tokens, Tokens]) -> Tokens:
    return whole_model[0]


def run(folder: Path, kind: str, prompts: Sequence[Sequence[int]], count: int = COUNT) -> Tokens:
    with Chain.open(folder, options(kind)) as chain:
        least = chain.runners[0].capabilities.min_row_tokens
        return generate(chain, prompts, count, min_row_tokens=least)


@pytest.fixture(scope="module")
def paged_whole(shards: Shards, prompt_ids: Tokens) -> Tokens:
    return run(shards(1), "paged", prompt_ids)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_stateful_shards_give_the_tokens_of_the_whole_model_in_openvino_genai(
    shards: Shards, whole_model: tuple[Tokens, Tokens], stages: int
) -> None:
    ids, expected = whole_model
    assert run(shards(stages), "stateful", ids) == expected


@pytest.mark.parametrize("stages", [2, 3])
def test_paged_shards_give_the_tokens_of_the_uncut_model(
    shards: Shards, prompt_ids: Tokens, paged_whole: Tokens, stages: int
) -> None:
    assert run(shards(stages), "paged", prompt_ids) == paged_whole


@pytest.mark.parametrize("number", [1, 4])
def test_a_prompt_alone_gives_the_tokens_it_gives_beside_nine_others(
    shards: Shards, prompt_ids: Tokens, paged_whole: Tokens, number: int
) -> None:
    assert run(shards(1), "paged", [prompt_ids[number]]) == [paged_whole[number]]


def logits_by_prefill(chain: Chain, tokens: Sequence[int], chunks: Sequence[int], first: int) -> np.ndarray:
    """Logits from position `first` on, of tokens fed in chunks of these sizes."""
    found, at = [], 0
    for length in chunks:
        begin = max(first - at, 0)
        picked = max(length - begin, 0)
        row = (0, at, length, min(begin, length - 1), picked)
        rows = make_rows([row], chain.block_size)
        logits = chain.infer(rows, np.array(tokens[at : at + length], np.int32))
        if picked:
            found.append(logits.copy())
        at += length
    return np.concatenate(found)


def chunks(length: int, size: int) -> list[int]:
    """Sizes that add up, none of them 1."""
    rest = length % size
    cut = [size] * (length // size) + ([rest] if rest else [])
    if cut[-1] == 1:
        cut[-2:] = [size + 1] if size == 2 else [size - 1, 2]
    return cut


def test_a_replay_continues_to_the_last_bit(shards: Shards, prompt_ids: Tokens, paged_whole: Tokens) -> None:
    """Replay after a lost worker is a prefill of prompt + accepted tokens, in chunks no larger than a step may be."""
    tokens = prompt_ids[4] + paged_whole[4]
    length, first = len(tokens), len(prompt_ids[4]) + 60
    with Chain.open(shards(2), options("paged")) as chain:
        in_twos = logits_by_prefill(chain, tokens, chunks(length, 2), first)
        for size in (16, 50, 64):
            assert np.array_equal(in_twos, logits_by_prefill(chain, tokens, chunks(length, size), first)), size
    assert in_twos.argmax(-1)[:-1].tolist() == tokens[first + 1 :]


def test_paged_and_stateful_agree_up_to_near_ties(
    shards: Shards, whole_model: tuple[Tokens, Tokens], capsys: pytest.CaptureFixture[str]
) -> None:
    """Dynamic quantization off, KV in f32: teacher-forced over the whole model's own answers."""
    ids, tokens = whole_model
    settings = {"dynamic_quantization": False}
    worst, flips = 0.0, 0
    with (
        Chain.open(shards(1), options("paged", **settings)) as paged,
        Chain.open(shards(1), options("stateful", **settings)) as stateful,
    ):
        for prompt, answer in zip(ids, tokens, strict=True):
            text = prompt + answer
            a, b = (logits_by_prefill(chain, text, [len(text)], len(prompt)) for chain in (paged, stateful))
            difference = np.abs(a - b).max(axis=-1)
            worst = max(worst, float(difference.max()))
            best = np.sort(b, axis=-1)[:, -2:]
            differ = a.argmax(-1) != b.argmax(-1)
            flips += int(differ.sum())
            assert ((best[:, 1] - best[:, 0])[differ] <= 2 * difference[differ]).all()
    with capsys.disabled():
        print(f"\npaged against stateful: largest logit difference {worst:.2g}, {flips} of {10 * COUNT} tokens flip")
    assert worst < 1e-2
