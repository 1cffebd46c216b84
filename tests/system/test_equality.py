"""The oracle of the whole system on the real model: ten prompts, 128 greedy tokens each, in f32.

stateful: 1 == 2 == 3 stages == the whole model in openvino-genai.
paged, exact: 1 == 2 == 3 stages (one stage is the uncut model on the same runner), alone == beside others, replayed ==
undisturbed; freely running pipelines of 1 to 3 stages are in test_speculation.py. The two runners use different
attention kernels: their logits are close, and where their tokens differ the two best candidates are as close.
"""

from collections.abc import Callable

import numpy as np
import pytest

from stages.chain import Chain
from tests.conftest import Shards
from tests.system.references import (
    COUNT,
    STEP,
    PagedChain,
    Tokens,
    chunks,
    greedy_answer,
    greedy_run,
    logits_by_prefill,
    options,
)

pytestmark = pytest.mark.model
Reference = Callable[[str], Tokens]


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_stateful_shards_give_the_tokens_of_the_whole_model_in_openvino_genai(
    reference: Reference, stages: int
) -> None:
    assert reference(f"stateful {stages}") == reference("genai")


@pytest.mark.parametrize("stages", [2, 3])
def test_paged_shards_give_the_tokens_of_the_uncut_model(
    paged: PagedChain, prompt_ids: Tokens, reference: Reference, stages: int
) -> None:
    for prompt, answer in zip(prompt_ids, reference("paged"), strict=False):
        assert greedy_answer(paged(stages), prompt, answer) == answer


@pytest.mark.parametrize("number", [1, 4])
def test_a_prompt_alone_gives_the_tokens_it_gives_beside_nine_others(
    paged: PagedChain, prompt_ids: Tokens, reference: Reference, number: int
) -> None:
    assert greedy_run(paged(1), [prompt_ids[number]], COUNT) == [reference("paged")[number]]


def test_a_replay_continues_to_the_last_bit(paged: PagedChain, prompt_ids: Tokens, reference: Reference) -> None:
    """Replay after a lost worker is a prefill of prompt + accepted tokens, in chunks no larger than a step may be."""
    tokens = prompt_ids[4] + reference("paged")[4]
    length, first = len(tokens), len(prompt_ids[4]) + 60
    in_twos = logits_by_prefill(paged(2), tokens, chunks(length, 2), first)
    for size in (16, 50, STEP):
        assert np.array_equal(in_twos, logits_by_prefill(paged(2), tokens, chunks(length, size), first)), size
    assert in_twos.argmax(-1)[:-1].tolist() == tokens[first + 1 :]


def test_paged_and_stateful_agree_up_to_near_ties(
    shards: Shards, prompt_ids: Tokens, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dynamic quantization off, KV in f32: teacher-forced over the whole model's own answers."""
    settings = {"dynamic_quantization": False}
    worst, flips, answers = 0.0, 0, reference("genai")
    with (
        Chain.open(shards(1), options("paged", **settings)) as blocks,
        Chain.open(shards(1), options("stateful", **settings)) as stateful,
    ):
        for prompt, answer in zip(prompt_ids[: len(answers)], answers, strict=True):
            text = prompt + answer
            a, b = (logits_by_prefill(chain, text, [len(text)], len(prompt)) for chain in (blocks, stateful))
            difference = np.abs(a - b).max(axis=-1)
            worst = max(worst, float(difference.max()))
            best = np.sort(b, axis=-1)[:, -2:]
            differ = a.argmax(-1) != b.argmax(-1)
            flips += int(differ.sum())
            assert ((best[:, 1] - best[:, 0])[differ] <= 2 * difference[differ]).all()
    with capsys.disabled():
        print(f"\npaged against stateful: largest logit difference {worst:.2g}, {flips} of {10 * COUNT} tokens flip")
    assert worst < 1e-2
