"""Beginnings are shared through real workers on the memory transport, and clients are told."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.contract.prompt import FinalEvent
from tests.decoder.local_pipeline import Pipeline, SlotShard, answer_to, pipeline

pytestmark = pytest.mark.pipelines

SYSTEM = "You are a pipeline of two stages, and you answer with letters. "
QUESTIONS = [SYSTEM + question for question in ("Who are you?", "Since when?", "Are there others?")]


@asynccontextmanager
async def serving(kind: str) -> AsyncGenerator[Pipeline]:
    if kind == "paged":
        async with pipeline() as here:
            yield here
        return
    async with pipeline(whole=False) as here:
        for index in range(2):
            await here.start_worker(index, slots=4)
        await here.start_decoder()
        await here.serving.wait()
        yield here


def run(kind: str, test: Callable[[Pipeline], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving(kind) as here:
            await test(here)

    asyncio.run(main())


async def ask(here: Pipeline, prompt: str) -> FinalEvent:
    final = await here.client.complete(prompt=prompt, max_tokens=12)
    assert final.text == answer_to(prompt, 12)
    return final


@pytest.mark.parametrize("kind", ["paged", "stateful"])
def test_a_second_prompt_is_computed_behind_what_it_shares_with_the_first(kind: str) -> None:
    async def test(here: Pipeline) -> None:
        finals = [await ask(here, question) for question in QUESTIONS]
        shared = len(SYSTEM) // 8 * 8 if kind == "paged" else len(SYSTEM)
        assert [final.usage.cached_tokens for final in finals] == [0, shared, shared]

    run(kind, test)


@pytest.mark.parametrize("kind", ["paged", "stateful"])
def test_prompts_that_come_together_share_what_the_first_of_them_reads(kind: str) -> None:
    async def test(here: Pipeline) -> None:
        finals = await asyncio.gather(*(ask(here, question) for question in QUESTIONS))
        assert sum(final.usage.cached_tokens > 0 for final in finals) == 2

    run(kind, test)


@pytest.mark.parametrize("kind", ["paged", "stateful"])
def test_after_a_lost_worker_nothing_is_taken_for_granted(kind: str) -> None:
    async def test(here: Pipeline) -> None:
        await ask(here, QUESTIONS[0])
        await here.kill(here.workers[1])
        shard: dict[str, Any] = {"slots": 4} if kind == "stateful" else {}
        await here.start_worker(1, **shard)
        assert (await ask(here, QUESTIONS[0])).usage.cached_tokens == 0
        assert (await ask(here, QUESTIONS[0])).usage.cached_tokens > 0

    run(kind, test)


def test_every_stage_makes_the_same_copies() -> None:
    async def test(here: Pipeline) -> None:
        for question in (QUESTIONS[0] + 40 * "!", *QUESTIONS):
            await ask(here, question)
        copied = [shard.copied for shard in here.shards if isinstance(shard, SlotShard)]
        assert copied[0]
        assert copied[0] == copied[1]

    run("stateful", test)
