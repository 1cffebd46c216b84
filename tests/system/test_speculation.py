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
from engine.local.model import demo_draft
from engine.local.pipeline import local_pipeline
from engine.transport.nats import connect
from engine.transport.subjects import Subjects
from stages.chain import Chain, prefill
from stages.settings import RunnerOptions
from tests.conftest import Shards
from tests.system.prompts import THIRTY
from tests.system.references import Tokens, greedy_answer, options

pytestmark = [pytest.mark.model, pytest.mark.broker]
LONG = 256
ALONE = 3
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


@pytest.fixture(scope="module")
def draft(shards: Shards) -> Path:
    return asyncio.run(demo_draft(shards(1), print))


def assert_undrafted(shards: Shards, prompts: Tokens, finals: Sequence[FinalEvent]) -> None:
    """Each answer is the one of the uncut model without drafts."""
    with Chain.open(shards(1), options("paged")) as uncut:
        wrong = [
            i
            for i, (prompt, final) in enumerate(zip(prompts, finals, strict=True))
            if greedy_answer(uncut, prompt, final.ids) != list(final.ids)
        ]
    assert not wrong


def ask(
    shards: Path, draft: Path, home: Path, prompts: Sequence[str], tokens: int, *stage_options: str, at_once: int = 8
) -> list[FinalEvent]:
    """Answers of a pipeline of processes, with a different draft setting each; the last three one by one."""

    async def main() -> list[FinalEvent]:
        async with (
            asyncio.timeout(600),
            local_pipeline(
                shards, home, print, stage_options=stage_options, decoder_options=("--draft", str(draft))
            ) as here,
            connect(here.url, name="test") as transport,
        ):
            client, places = Client(transport, Subjects("default", here.slug)), asyncio.Semaphore(at_once)

            async def one(prompt: str, setting: dict[str, Any]) -> FinalEvent:
                async with places:
                    return await client.complete(prompt=prompt, max_tokens=tokens, ignore_eos=True, **setting)

            wanted = list(zip(prompts, islice(cycle(SETTINGS), len(prompts)), strict=True))
            finals = list(await asyncio.gather(*(one(*each) for each in wanted[:-ALONE])))
            for prompt, _ in wanted[-ALONE:]:
                finals.append(await one(prompt, {"draft": "model", "draft_tokens": 2}))
            return finals

    return asyncio.run(main())


def test_thirty_answers_of_256_tokens_are_the_same_with_and_without_drafts(
    shards: Shards, draft: Path, prompt_ids: Tokens, tmp_path: Path
) -> None:
    finals = ask(shards(2), draft, tmp_path, THIRTY, LONG)
    assert_undrafted(shards, prompt_ids, finals)
    accepted = sum(final.usage.accepted_tokens for final in finals)
    assert accepted > 0.3 * sum(final.usage.completion_tokens for final in finals)
    assert all(final.usage.completion_tokens == LONG for final in finals)


@pytest.mark.parametrize("stages", [1, 3])
def test_the_number_of_stages_makes_no_difference_to_that(
    shards: Shards, draft: Path, prompt_ids: Tokens, tmp_path: Path, stages: int
) -> None:
    finals = ask(shards(stages), draft, tmp_path, THIRTY[:12], 64)
    assert_undrafted(shards, prompt_ids[:12], finals)


def test_stateful_stages_give_the_same_tokens_up_to_near_ties(
    shards: Shards, draft: Path, prompt_ids: Tokens, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rejected drafts are masked out there. Where tokens part, the two best candidates are as close as the kernels."""
    tokens, prompts = 96, THIRTY[:6]

    async def main() -> tuple[list[FinalEvent], list[FinalEvent]]:
        options = ("--runner", "stateful", "--threads", "1")
        async with (
            asyncio.timeout(300),
            local_pipeline(
                shards(2), tmp_path, print, stage_options=options, decoder_options=("--draft", str(draft))
            ) as here,
            connect(here.url, name="test") as transport,
        ):
            client = Client(transport, Subjects("default", here.slug))

            async def all_with(**setting: Any) -> list[FinalEvent]:
                asked = [client.complete(prompt=p, max_tokens=tokens, ignore_eos=True, **setting) for p in prompts]
                return list(await asyncio.gather(*asked))

            return await all_with(draft="none"), await all_with(draft="model", draft_tokens=3)

    off, on = asyncio.run(main())
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
