"""Stages that hold less of a sequence than the model could: a shorter context, or a window that slides."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.contract.errors import PromptError
from engine.decoder.core import DecoderCore
from engine.decoder.slots import SlotPool
from tests.decoder.fakes import stateful
from tests.decoder.local_pipeline import Pipeline, answer_to, pipeline
from tests.decoder.scripted import SlotTarget
from tests.decoder.test_prefix_cache import TEXT, answered, asking, target_token


def run(test: Callable[[Pipeline], Awaitable[None]]) -> None:
    """On stages with a context of 200, of a model with one of 2000."""

    async def main() -> None:
        async with pipeline(whole=False) as here:
            here.manifest = {"context_length": 2000}
            for index in range(2):
                await here.start_worker(index, slots=4)
            await here.start_decoder()
            await here.serving.wait()
            await test(here)

    asyncio.run(main())


@pytest.mark.pipelines
def test_an_answer_ends_where_the_stages_end() -> None:
    async def test(here: Pipeline) -> None:
        prompt = "x" * 170
        finals = await asyncio.gather(*(here.client.complete(prompt=prompt, max_tokens=500, n=n) for n in (1, 2)))
        assert [final.usage.completion_tokens for final in finals] == [30, 60]
        assert {final.text for final in finals} == {answer_to(prompt, 30)}
        assert finals[0].finish_reason == "length"

    run(test)


@pytest.mark.pipelines
def test_a_prompt_longer_than_the_stages_take_is_refused_with_what_they_take() -> None:
    async def test(here: Pipeline) -> None:
        with pytest.raises(PromptError, match=r"200 tokens; with room for more the stages .* take 199"):
            await here.client.complete(prompt="x" * 200, max_tokens=1)
        assert (await here.client.complete(prompt="x" * 199, max_tokens=9)).usage.completion_tokens == 1

    run(test)


def answering(window: int) -> tuple[DecoderCore, SlotTarget]:
    core = DecoderCore()
    core.open_epoch(replace(stateful(), window=window))
    return core, SlotTarget(target_token)


@pytest.mark.parametrize(("window", "cached"), [(0, 98), (120, 98), (100, 0)])
def test_a_slot_that_has_slid_on_is_not_shared(window: int, cached: int) -> None:
    core, target = answering(window)
    answered(core, target, asking("first", TEXT[:100]))
    again = asking("again", TEXT[:100])
    answered(core, target, again)
    assert again.cached == cached


@pytest.mark.parametrize(("window", "copies"), [(0, 2), (60, 0)])
def test_nor_is_one_that_slides_while_it_runs(window: int, copies: int) -> None:
    core, target = answering(window)
    answered(core, target, *(asking(str(i), TEXT[:82], 10) for i in range(3)))
    assert len(target.copies) == copies


def test_a_pool_knows_whose_slot_is_whole() -> None:
    whole: Any = [SlotPool(1, keeps=True, window=window).whole(50) for window in (0, 50, 49)]
    assert whole == [True, True, False]
