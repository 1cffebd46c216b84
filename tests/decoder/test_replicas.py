"""Two pipelines of one model share its queue; real workers and decoders on the memory transport."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from engine.contract.errors import UsageError
from engine.contract.prompt import FinalEvent
from engine.decoder import pipeline as pipelines
from tests.decoder.local_pipeline import SUBJECTS, Clock, Pipeline, answer_to, pipeline

PROMPTS = [f"prompt {letter}" for letter in "abcdefgh"]
COUNT = 60


def run(test: Callable[[Pipeline], Awaitable[None]]) -> None:
    async def main() -> None:
        async with pipeline(max_running=2, max_waiting=1) as here:
            here.serving.clear()
            await here.start_decoder(pipeline="two")
            for index in range(2):
                await here.start_worker(index, pipeline="two")
            await here.serving.wait()
            await test(here)

    asyncio.run(main())


async def asked_halfway(here: Pipeline) -> "asyncio.Future[list[FinalEvent]]":
    """Answers under way on both pipelines."""
    asking = asyncio.gather(*(here.client.complete(prompt=prompt, max_tokens=COUNT) for prompt in PROMPTS))
    async with here.transport.subscribe(f"{SUBJECTS.root}.tokens.*") as inbox:
        while not all(decoder.running for decoder in here.decoders):
            await inbox.get()
    return asking


def assert_right(finals: list[FinalEvent]) -> None:
    assert [final.text for final in finals] == [answer_to(prompt, COUNT) for prompt in PROMPTS]


def test_both_pipelines_answer_and_neither_disturbs_the_other() -> None:
    async def test(here: Pipeline) -> None:
        assert_right(await (await asked_halfway(here)))
        assert [decoder.replays for decoder in here.decoders] == [0, 0]

    run(test)


def test_the_requests_of_a_killed_decoder_move_to_the_other_pipeline() -> None:
    async def test(here: Pipeline) -> None:
        asking = await asked_halfway(here)
        await here.kill(here.running[3])  # the second decoder, behind all of the first pipeline
        assert isinstance(here.broker.clock, Clock)
        here.broker.clock.ahead += 60  # its prompts are handed out again
        assert_right(await asking)

    run(test)


def test_the_requests_of_a_pipeline_without_a_stage_move_to_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "STUCK_SECONDS", 0.2)
    monkeypatch.setattr(pipelines, "SUSPECT_SECONDS", 1.0)

    async def test(here: Pipeline) -> None:
        asking = await asked_halfway(here)
        await here.kill(here.workers[1])  # of the second pipeline: started last
        assert_right(await asking)
        assert here.decoders[1].open_requests == 0
        await here.start_worker(1, pipeline="two")
        assert_right(await (await asked_halfway(here)))  # both again

    run(test)


def test_a_pipeline_needs_a_name_that_can_be_a_key() -> None:
    assert SUBJECTS.lease_key("main") == "pipeline"
    assert SUBJECTS.lease_key("two") != SUBJECTS.lease_key("main")
    with pytest.raises(UsageError, match="pipeline 'a b'"):
        SUBJECTS.lease_key("a b")
