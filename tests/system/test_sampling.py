"""Sampled answers of real processes and the real model: the seed decides, and nothing else (five equalities, D46)."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine.client.client import Client
from engine.contract.prompt import FinalEvent
from engine.contract.sampling import Sampling, expand_sampling
from engine.contract.side import RowSide
from engine.transport.nats import NatsTransport
from engine.transport.subjects import Subjects
from stages.chain import Chain
from stages.sampling import Sampler, adjusted
from tests.system.prompts import THIRTY
from tests.system.references import STEP, PagedChain, Tokens, chunks, logits_by_prefill
from tests.system.running import Running

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.xdist_group("drafting")]
TOKENS = 96
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.7, "seed": 1},
    {"temperature": 1.0, "top_p": 0.9, "seed": 2},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.02, "seed": 3},
    {"temperature": 0.7, "repetition_penalty": 1.1, "frequency_penalty": 0.4, "presence_penalty": 0.2, "seed": 4},
)
DRAFTS: tuple[dict[str, Any], ...] = (
    {"draft": "none"},
    {"draft": "model", "draft_tokens": 3},
    {"draft": "lookup"},
    {"draft": "auto"},
)


def sampled_answer(chain: Chain, prompt: Sequence[int], answer: Sequence[int], how: Sampling) -> list[int]:
    """What an `exact` chain samples behind the prompt and behind each token of the answer but the last."""
    tokens = [*prompt, *answer]
    logits = logits_by_prefill(chain, tokens, chunks(len(tokens), STEP), len(prompt) - 1)
    sampler, found = Sampler(np.arange(logits.shape[1])), list[int]()
    for i, line in enumerate(logits[:-1]):
        said, times = np.unique(np.array(answer[:i], np.int64), return_counts=True)
        side = RowSide(row=0, how=how, position=len(prompt) + i, read=tuple(prompt),
                       said=tuple(said.tolist()), times=tuple(times.tolist()))  # fmt: skip
        found.append(sampler.draw(adjusted(line, side, 0), how, len(prompt) + i))
    return found


def test_the_seed_decides_with_any_drafts_beside_any_others_and_after_a_restart(
    paged: PagedChain, prompt_ids: Tokens, drafting: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = THIRTY[: len(KINDS)]

    async def ask(transport: NatsTransport, subjects: Subjects) -> list[list[FinalEvent]]:
        client = Client(transport, subjects)

        async def one(i: int, drafts: dict[str, Any]) -> FinalEvent:
            return await client.complete(
                prompt=prompts[i], max_tokens=TOKENS, ignore_eos=True, logprobs=True, **KINDS[i], **drafts
            )

        rounds = [list(await asyncio.gather(*(one(i, d) for i in range(len(KINDS))))) for d in DRAFTS]
        rounds.append([await one(i, DRAFTS[(i + 1) % len(DRAFTS)]) for i in range(len(KINDS))])  # alone
        return rounds

    rounds = drafting.do(ask)
    for i, first in enumerate(rounds[0]):
        assert {final.ids for final in (each[i] for each in rounds)} == {first.ids}
        assert sampled_answer(paged(1), prompt_ids[i], first.ids, expand_sampling(KINDS[i])) == list(first.ids)
        assert [one.id for one in first.logprobs] == list(first.ids)
    drafted = [(final.usage.accepted_tokens, final.usage.drafted_tokens) for final in rounds[1]]
    assert all(accepted > 0.2 * checked for accepted, checked in drafted)
    with capsys.disabled():
        print(f"\nsampled with three drafts of the draft model each: accepted {drafted}")
