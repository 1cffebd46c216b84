"""Warm == cold through real processes: a prompt whose beginning is in the caches gets the answer it got without."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from engine.client.client import Client
from engine.contract.manifest import load_manifest
from engine.contract.prompt import FinalEvent
from engine.decoder.tokenizer import load_tokenizer
from engine.local.pipeline import local_pipeline
from engine.transport.nats import connect
from engine.transport.subjects import Subjects
from stages.chain import Chain, prefill
from stages.settings import RunnerOptions
from tests.conftest import Shards
from tests.system.prompts import MORE_QUESTIONS, QUESTIONS, TEMPLATE

pytestmark = [pytest.mark.model, pytest.mark.broker]
ANSWER = 48  # tokens
NEAR = 1e-3  # logits


def long_prompts(shards: Path, *lengths: int) -> list[str]:
    """Prompts of about so many tokens, none of which begins like another."""
    tokenizer = load_tokenizer(shards, load_manifest(shards))
    found: list[str] = []
    for number, length in enumerate(lengths):
        text, at = f"Part {number}.", number
        while len(tokenizer.encode(TEMPLATE.format(text), special=True)) < length:
            text += " " + (*QUESTIONS, *MORE_QUESTIONS)[at % 30]
            at += 7
        found.append(TEMPLATE.format(text))
    return found


def ask_twice(shards: Path, home: Path, prompts: list[str], *stage_options: str) -> list[list[FinalEvent]]:
    """Answers of two rounds: one prompt after the other, then all at once, the first of them three times."""

    async def main() -> list[list[FinalEvent]]:
        async with (
            asyncio.timeout(500),
            local_pipeline(shards, home, print, stage_options=stage_options) as here,
            connect(here.url, name="test") as transport,
        ):
            client = Client(transport, Subjects("default", here.slug))

            async def one(prompt: str) -> FinalEvent:
                return await client.complete(prompt=prompt, max_tokens=ANSWER, ignore_eos=True, draft="none")

            cold = [await one(prompt) for prompt in prompts]
            return [cold, list(await asyncio.gather(*map(one, (*prompts, prompts[0], prompts[0]))))]

    return asyncio.run(main())


def test_prompts_of_100_500_and_2000_tokens_are_answered_warm_as_cold(shards: Shards, tmp_path: Path) -> None:
    cold, warm = ask_twice(shards(2), tmp_path, long_prompts(shards(1), 100, 500, 2000))
    assert [final.ids for final in warm] == [final.ids for final in (*cold, cold[0], cold[0])]
    assert [final.usage.cached_tokens for final in cold] == [0, 0, 0]
    for final in warm:
        assert final.usage.prompt_tokens - 34 <= final.usage.cached_tokens <= final.usage.prompt_tokens - 2


def test_stateful_stages_answer_warm_as_cold_up_to_near_ties(
    shards: Shards, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of other lengths are rounded otherwise there. Where answers part, the best two candidates are that close."""
    prompts = long_prompts(shards(1), 100, 500, 1000)
    cold, warm = ask_twice(shards(2), tmp_path, prompts, "--runner", "stateful", "--threads", "1")
    assert all(final.usage.cached_tokens > 0 for final in warm)
    parted = 0
    with Chain.open(shards(1), RunnerOptions(kind="stateful", threads=1)) as chain:
        tokenizer = load_tokenizer(shards(1), load_manifest(shards(1)))
        for prompt, a, b in zip(prompts, cold, warm[: len(prompts)], strict=True):
            if a.ids == b.ids:
                continue
            parted += 1
            at = next(at for at in range(ANSWER) if a.ids[at] != b.ids[at])
            logits = prefill(chain, 0, [*tokenizer.encode(prompt, special=True), *a.ids[:at]])[0]
            best = np.argsort(logits)[-2:]
            assert {a.ids[at], b.ids[at]} == set(best.tolist())
            assert logits[best[1]] - logits[best[0]] < NEAR
    with capsys.disabled():
        print(f"\nstateful warm and cold: {parted} of {len(prompts)} answers part at a near tie")
