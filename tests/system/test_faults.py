"""Real processes, a real broker, the real model: a stage is killed in the middle of four answers."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest

from engine.contract.prompt import Event, FinalEvent, decode_event
from engine.local.pipeline import LocalPipeline, local_pipeline
from engine.transport.nats import NatsTransport, connect
from engine.transport.subjects import Subjects
from tests.conftest import Shards
from tests.system.prompts import PROMPTS

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults]
TOKENS = 24
BEFORE = 6  # events seen before something is done to the pipeline

Disturb = Callable[[LocalPipeline], Awaitable[None]]


async def answers(transport: NatsTransport, subjects: Subjects, tag: str, halfway: asyncio.Event) -> list[list[Event]]:
    """All events of four prompts exactly as they arrive: nothing is sorted, nothing is dropped."""

    async def one(number: int) -> list[Event]:
        request = f"{tag}-{number}"
        async with transport.subscribe(subjects.tokens(request)) as inbox:  # type: ignore[arg-type]
            fields = {"id": request, "prompt": PROMPTS[number], "max_tokens": TOKENS, "ignore_eos": True}
            await transport.publish(subjects.prompt, orjson.dumps(fields))
            events: list[Event] = []
            while not events or not isinstance(events[-1], FinalEvent):
                events.append(decode_event((await inbox.get()).data))
                if len(events) == BEFORE:
                    halfway.set()
            return events

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(one(number)) for number in range(4)]
    return [task.result() for task in asked]


def assert_same(calm: list[list[Event]], disturbed: list[list[Event]]) -> None:
    for before, after in zip(calm, disturbed, strict=True):
        assert [event.seq for event in after] == list(range(len(after)))  # no gap, no duplicate
        assert after[-1].text == before[-1].text
        assert after[-1].ids == before[-1].ids
        assert "".join(event.text for event in after[:-1]) == before[-1].text


def undisturbed_and(shards: Path, home: Path, disturb: Disturb) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(240),
            local_pipeline(shards, home, print) as pipeline,
            connect(pipeline.url, name="test") as transport,
        ):
            subjects = Subjects("default", pipeline.slug)
            calm = await answers(transport, subjects, "calm", asyncio.Event())
            halfway = asyncio.Event()
            asking = asyncio.create_task(answers(transport, subjects, "disturbed", halfway))
            await halfway.wait()
            await disturb(pipeline)
            assert_same(calm, await asking)

    asyncio.run(main())


@pytest.mark.parametrize("index", [0, 1])
def test_a_stage_killed_in_mid_answer_and_started_again_changes_no_text(
    shards: Shards, tmp_path: Path, index: int
) -> None:
    async def kill_and_start_again(pipeline: LocalPipeline) -> None:
        pipeline.stages[index].kill()
        await pipeline.stages[index].wait()
        await pipeline.start_stage(index, len(pipeline.stages))

    undisturbed_and(shards(2), tmp_path, kill_and_start_again)


def test_a_stage_told_to_stop_in_mid_answer_exits_0_and_its_successor_goes_on(shards: Shards, tmp_path: Path) -> None:
    async def replace(pipeline: LocalPipeline) -> None:
        pipeline.stages[1].signal(signal.SIGTERM)
        assert await pipeline.stages[1].wait() == 0
        await pipeline.start_stage(1, len(pipeline.stages))

    undisturbed_and(shards(2), tmp_path, replace)
