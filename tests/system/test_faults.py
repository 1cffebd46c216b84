"""Real processes, a real broker, the real model: a stage is killed in the middle of four answers."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Generator
from itertools import count

import orjson
import pytest

from engine.contract.prompt import Event, FinalEvent, decode_event
from engine.local.pipeline import LocalPipeline
from engine.transport.nats import NatsTransport
from engine.transport.subjects import Subjects
from tests.conftest import Shards
from tests.system.prompts import PROMPTS
from tests.system.running import Running, running

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


class Disturbed:
    """One pipeline for all that is done to it: every worker that was lost has a successor afterwards."""

    def __init__(self, here: Running) -> None:
        self._here, self._tags = here, count()
        self._calm = self._ask(None)

    def by(self, disturb: Disturb) -> None:
        """Ask again, disturb it in mid-answer, and see the same events."""
        assert_same(self._calm, self._ask(disturb))

    def _ask(self, disturb: Disturb | None) -> list[list[Event]]:
        async def ask(transport: NatsTransport, subjects: Subjects) -> list[list[Event]]:
            halfway = asyncio.Event()
            asking = asyncio.create_task(answers(transport, subjects, f"round-{next(self._tags)}", halfway))
            await halfway.wait()
            if disturb:
                await disturb(self._here.pipeline)
            return await asking

        return self._here.do(ask, seconds=240)


@pytest.fixture(scope="module")
def disturbed(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Generator[Disturbed]:
    with running(shards(2), tmp_path_factory.mktemp("faults")) as here:
        yield Disturbed(here)


@pytest.mark.parametrize("index", [0, 1])
def test_a_stage_killed_in_mid_answer_and_started_again_changes_no_text(disturbed: Disturbed, index: int) -> None:
    async def kill_and_start_again(pipeline: LocalPipeline) -> None:
        pipeline.stages[index].kill()
        await pipeline.stages[index].wait()
        pipeline.stages[index] = await pipeline.start_stage(index, len(pipeline.stages))

    disturbed.by(kill_and_start_again)


def test_a_stage_told_to_stop_in_mid_answer_exits_0_and_its_successor_goes_on(disturbed: Disturbed) -> None:
    async def replace(pipeline: LocalPipeline) -> None:
        pipeline.stages[1].signal(signal.SIGTERM)
        assert await pipeline.stages[1].wait() == 0
        pipeline.stages[1] = await pipeline.start_stage(1, len(pipeline.stages))

    disturbed.by(replace)
