"""A decoder moves a stage to its standby; real workers on the memory transport."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.contract.errors import DeviceError, PromptError
from engine.contract.prompt import FinalEvent
from stages.place import Terms
from tests.decoder.local_pipeline import SUBJECTS, Pipeline, answer_to, pipeline

STANDBY = Terms(standby=True, grace=20.0)
PROMPTS = ["why", "a longer prompt that takes several chunks to send", "x", "who are you and what do you want"]
COUNT = 60


def run(test: Callable[[Pipeline], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with pipeline(**settings) as here:
            await test(here)

    asyncio.run(main())


async def asked_halfway(here: Pipeline) -> "asyncio.Future[list[FinalEvent]]":
    """Four answers under way."""
    asking = asyncio.gather(*(here.client.complete(prompt=prompt, max_tokens=COUNT) for prompt in PROMPTS))
    async with here.transport.subscribe(f"{SUBJECTS.root}.tokens.*") as inbox:
        for _ in range(8):
            await inbox.get()
    return asking


def assert_right(finals: list[FinalEvent]) -> None:
    assert [final.text for final in finals] == [answer_to(prompt, COUNT) for prompt in PROMPTS]


def lose_device(here: Pipeline, index: int) -> None:
    """A worker's device computes nothing any more."""

    def fail(*_: Any) -> Any:
        raise DeviceError("the device is gone")

    shard: Any = here.shards[index]
    shard.infer = shard.check = fail


@pytest.mark.parametrize("index", [0, 1])
def test_a_killed_worker_s_standby_serves_at_once(index: int) -> None:
    async def test(here: Pipeline) -> None:
        worker = here.workers[index]
        await here.start_worker(index, terms=STANDBY)
        asking = await asked_halfway(here)
        await here.kill(worker)
        assert_right(await asking)
        assert here.services[-1].state == "serving"

    run(test)


def test_a_worker_that_dies_with_the_only_step_is_noticed_long_before_the_step_s_deadline() -> None:
    async def test(here: Pipeline) -> None:
        worker = here.workers[1]
        await here.start_worker(1, terms=STANDBY)
        events = here.client.generate(prompt="why", max_tokens=COUNT)
        for _ in range(4):
            await anext(events)
        here.broker.intercept = lambda subject, data: [] if ".stage." in subject else [data]
        await here.kill(worker)
        here.broker.intercept = None
        async with asyncio.timeout(10):
            *_, final = [event async for event in events]
        assert final.text == answer_to("why", COUNT)

    run(test, step_timeout=1000.0)


def test_a_worker_that_stops_beside_a_standby_costs_no_step() -> None:
    async def test(here: Pipeline) -> None:
        stop = asyncio.Event()
        await here.start_decoder()
        await here.start_worker(0)
        leaving = await here.start_worker(1, terms=Terms(grace=20.0), stop=stop)
        await here.serving.wait()
        await here.start_worker(1, terms=STANDBY)
        asking = await asked_halfway(here)
        stop.set()
        await asyncio.wait({leaving})
        assert_right(await asking)
        assert here.services[-1].state == "serving"
        assert here.decoders[0].replays == 1
        assert here.decoders[0].lost == 0

    run(test, whole=False)


def test_a_worker_that_gives_way_stands_by_and_is_taken_again_in_need() -> None:
    async def test(here: Pipeline) -> None:
        owned = here.services[1]
        standby = await here.start_worker(1, terms=STANDBY)
        asking = await asked_halfway(here)
        owned.give_way("on battery")
        assert_right(await asking)
        assert (owned.state, here.services[-1].state) == ("ready", "serving")
        again = await asked_halfway(here)
        await here.kill(standby)
        assert_right(await again)
        assert owned.state == "serving"

    run(test)


def test_the_only_worker_of_a_stage_goes_on_although_it_would_give_way() -> None:
    async def test(here: Pipeline) -> None:
        here.services[1].give_way("on battery")
        assert_right(await (await asked_halfway(here)))
        assert here.decoders[0].replays == 0

    run(test)


def test_a_worker_whose_device_fails_is_left_for_a_standby() -> None:
    async def test(here: Pipeline) -> None:
        await here.start_worker(1, terms=STANDBY)
        asking = await asked_halfway(here)

        lose_device(here, 1)
        assert_right(await asking)
        assert here.services[-1].state == "serving"
        assert here.services[-1].heartbeat().epoch > here.services[1].heartbeat().epoch
        assert here.decoders[0].replays == 1

    run(test)


def test_the_only_worker_of_a_stage_ends_when_its_device_does_and_no_prompt_is_given_up_for_it() -> None:
    async def test(here: Pipeline) -> None:
        worker = here.workers[1]
        asking = await asked_halfway(here)
        lose_device(here, 1)
        await asyncio.wait({worker})
        assert not asking.done()
        await here.start_worker(1)
        assert_right(await asking)

    run(test)


def test_a_device_that_only_one_prompt_is_too_much_for_is_kept() -> None:
    async def test(here: Pipeline) -> None:
        await here.start_decoder()
        await here.start_worker(0)
        worker = await here.start_worker(1, poison=ord("#"))
        await here.serving.wait()
        with pytest.raises(PromptError, match="given up"):
            await here.client.complete(prompt="# this one", max_tokens=COUNT)
        assert_right(await (await asked_halfway(here)))
        assert not worker.done()

    run(test, whole=False)
