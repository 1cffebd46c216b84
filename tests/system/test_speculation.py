"""Speculation on == off: real model, real draft model, real broker and processes, profile exact.

Off is the uncut model on the same runner: each token must be its own, given those before it. On is the pipeline, up to
eight requests at once, each with its own source and number of drafts; the last prompts come alone, so that windows run
ahead.
"""

import asyncio
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.client.client import Client
from engine.contract.prompt import FinalEvent
from engine.transport.nats import NatsTransport
from engine.transport.subjects import Subjects
from stages.chain import Chain, prefill
from stages.settings import RunnerOptions
from tests.conftest import Shards
from tests.system.prompts import THIRTY
from tests.system.references import PagedChain, Tokens, greedy_answer
from tests.system.running import Running, running

pytestmark = [pytest.mark.model, pytest.mark.broker]
LONG = 256
AT_ONCE, ALONE = 8, 3
NEAR = 1e-3  # logits: ten times what rows of different length were measured apart (tests/stages/test_row_lengths.py)
SETTINGS: tuple[dict[str, Any], ...] = (
    {"draft": "model", "draft_tokens": 1},
    {"draft": "model", "draft_tokens": 3},
    {"draft": "lookup", "draft_tokens": 5},
    {"draft": "model", "draft_tokens": 5},
    {"draft": "auto"},
    {"draft": "model", "draft_tokens": 10},
    {"draft": "lookup"},
    {"draft": "model"},
    {"draft": "lookup", "draft_tokens": 10},
    {"draft": "auto", "draft_tokens": 3},
    {"draft": "none"},
)


def assert_undrafted(uncut: Chain, prompts: Tokens, finals: Sequence[FinalEvent]) -> None:
    """Each answer is the one of the uncut model without drafts."""
    wrong = [
        i
        for i, (prompt, final) in enumerate(zip(prompts, finals, strict=True))
        if greedy_answer(uncut, prompt, final.ids) != list(final.ids)
    ]
    assert not wrong


def answers(here: Running, prompts: Sequence[str], tokens: int) -> list[FinalEvent]:
    """With a different draft setting each, eight at once; the last three one by one."""

    async def ask(transport: NatsTransport, subjects: Subjects) -> list[FinalEvent]:
        client, places = Client(transport, subjects), asyncio.Semaphore(AT_ONCE)

        async def one(prompt: str, setting: dict[str, Any]) -> FinalEvent:
            async with places:
                return await client.complete(prompt=prompt, max_tokens=tokens, ignore_eos=True, **setting)

        wanted = list(zip(prompts, islice(cycle(SETTINGS), len(prompts)), strict=True))
        finals = list(await asyncio.gather(*(one(*each) for each in wanted[:-ALONE])))
        for prompt, _ in wanted[-ALONE:]:
            finals.append(await one(prompt, {"draft": "model", "draft_tokens": 2}))
        return finals

    return here.do(ask)


@pytest.mark.xdist_group("drafting")
def test_thirty_answers_of_256_tokens_are_the_same_with_and_without_drafts(
    paged: PagedChain, drafting: Running, prompt_ids: Tokens
) -> None:
    finals = answers(drafting, THIRTY, LONG)
    assert_undrafted(paged(1), prompt_ids, finals)
    accepted = sum(final.usage.accepted_tokens for final in finals)
    assert accepted > 0.3 * sum(final.usage.completion_tokens for final in finals)
    assert all(final.usage.completion_tokens == LONG for final in finals)


@pytest.mark.parametrize("stages", [1, 3])
def test_the_number_of_stages_makes_no_difference_to_that(
    shards: Shards, paged: PagedChain, draft: Path, prompt_ids: Tokens, tmp_path: Path, stages: int
) -> None:
    with running(shards(stages), tmp_path, decoder_options=("--draft", str(draft))) as here:
        finals = answers(here, THIRTY[:12], 64)
    assert_undrafted(paged(1), prompt_ids[:12], finals)


def test_stateful_stages_give_the_same_tokens_up_to_near_ties(
    shards: Shards, draft: Path, prompt_ids: Tokens, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rejected drafts are masked out there. Where tokens part, the two best candidates are as close as the kernels."""
    tokens, prompts = 96, THIRTY[:6]

    async def ask(client: Client, **setting: Any) -> list[FinalEvent]:
        asked = [client.complete(prompt=p, max_tokens=tokens, ignore_eos=True, **setting) for p in prompts]
        return list(await asyncio.gather(*asked))

    stateful = ("--runner", "stateful", "--threads", "1")
    with running(shards(2), tmp_path, stage_options=stateful, decoder_options=("--draft", str(draft))) as here:
        off = here.do(lambda *way: ask(Client(*way), draft="none"))
        on = here.do(lambda *way: ask(Client(*way), draft="model", draft_tokens=3))
    parted = [
        (i, next(at for at in range(tokens) if a.ids[at] != b.ids[at]))
        for i, (a, b) in enumerate(zip(off, on, strict=True))
        if a.ids != b.ids
    ]
    with Chain.open(shards(1), RunnerOptions(kind="stateful", threads=1)) as chain:
        for i, at in parted:
            logits = prefill(chain, 0, [*prompt_ids[i], *off[i].ids[:at]])[0]
            best = np.argsort(logits)[-2:]
            assert {off[i].ids[at], on[i].ids[at]} == set(best.tolist())
            assert logits[best[1]] - logits[best[0]] < NEAR
    with capsys.disabled():
        print(f"\nstateful with and without drafts: {len(parted)} of {len(prompts)} answers part at a near tie")
    assert sum(final.usage.accepted_tokens for final in on) > tokens
