"""Four prompts asked at once, by plain subscribers who keep exactly what arrives; and what must hold of it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, TypeVar

import orjson

from engine.client.client import Client
from engine.contract.prompt import Event, FinalEvent, decode_event
from engine.local.pipeline import LocalPipeline
from engine.transport.nats import NatsTransport
from engine.transport.subjects import Subjects
from tests.system.prompts import PROMPTS
from tests.system.running import Running

TOKENS = 24
HASTY = ("--grace", "0.1")  # a decoder that does not wait for its answers when told to stop
BEFORE = 6  # events seen before something is done to the pipeline

T = TypeVar("T")
Answers = list[list[Event]]
Disturb = Callable[[LocalPipeline], Awaitable[None]]


async def answers(transport: NatsTransport, subjects: Subjects, tag: str, halfway: asyncio.Event) -> Answers:
    """All events exactly as they arrive: nothing is sorted, nothing is dropped."""

    async def one(number: int) -> list[Event]:
        request = f"{tag}-{number}"
        async with transport.subscribe(subjects.tokens(request)) as inbox:
            fields: dict[str, Any] = {"id": request, "prompt": PROMPTS[number], "max_tokens": TOKENS}
            await transport.publish(subjects.prompt, orjson.dumps({**fields, "ignore_eos": True}))
            events: list[Event] = []
            while not events or not isinstance(events[-1], FinalEvent):
                events.append(decode_event((await inbox.get()).data))
                if len(events) == BEFORE:
                    halfway.set()
            return events

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(one(number)) for number in range(4)]
    return [task.result() for task in asked]


def assert_same(calm: Sequence[Sequence[Event]], disturbed: Sequence[Sequence[Event]]) -> None:
    """The same text and tokens, no gap, no duplicate, all computed alike."""
    for before, after in zip(calm, disturbed, strict=True):
        assert [event.seq for event in after] == list(range(len(after)))
        assert after[-1].text == before[-1].text
        assert after[-1].ids == before[-1].ids
        assert "".join(event.text for event in after[:-1]) == before[-1].text
        assert tuple(token for event in after[:-1] for token in event.ids) == before[-1].ids
        assert after[-1].numerics == before[-1].numerics


def assert_marked(calm: Sequence[Sequence[Event]], disturbed: Sequence[Sequence[Event]]) -> None:
    """No gap, no duplicate, and up to where other arithmetic goes on the same tokens."""
    for before, after in zip(calm, disturbed, strict=True):
        final = after[-1]
        assert isinstance(final, FinalEvent)
        assert final.mixed
        assert [event.seq for event in after] == list(range(len(after)))
        assert "".join(event.text for event in after[:-1]) == final.text
        assert tuple(word for event in after[:-1] for word in event.numerics) == final.numerics
        change = [event.seq for event in after[:-1] if event.numerics][-1]
        alike = tuple(token for event in after[:change] for token in event.ids)
        assert alike == before[-1].ids[: len(alike)] != ()


Ask = Callable[[NatsTransport, Subjects, str, asyncio.Event], Awaitable[Answers]]


async def by_client(transport: NatsTransport, subjects: Subjects, tag: str, halfway: asyncio.Event) -> Answers:
    """What our own client makes of it: it reads what it has missed from the event log."""

    async def one(number: int) -> list[Event]:
        client, events = Client(transport, subjects), list[Event]()
        fields: dict[str, Any] = {"id": f"{tag}-{number}", "prompt": PROMPTS[number], "max_tokens": TOKENS}
        async for event in client.generate(**fields, ignore_eos=True):
            events.append(event)
            if len(events) == BEFORE:
                halfway.set()
        return events

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(one(number)) for number in range(4)]
    return [task.result() for task in asked]


class Disturbed:
    """One pipeline for all that is done to it: whatever was lost has a successor afterwards."""

    def __init__(self, here: Running) -> None:
        self._here, self._tags = here, count()
        self._calm = self._ask(None, answers)

    @property
    def here(self) -> Running:
        """The pipeline, to ask it or look at it otherwise."""
        return self._here

    @property
    def url(self) -> str:
        """Of the broker."""
        return self._here.pipeline.url

    @property
    def pipeline(self) -> LocalPipeline:
        """For those that replace its parts."""
        return self._here.pipeline

    @property
    def calm(self) -> Answers:
        """What is told of the four prompts when all is well."""
        return self._calm

    def do(self, work: Callable[[NatsTransport, Subjects], Awaitable[T]], *, seconds: float = 240) -> T:
        """Something else with the same pipeline."""
        return self._here.do(work, seconds=seconds)

    def by(self, disturb: Disturb, ask: Ask = answers) -> None:
        """Ask again, disturb it in mid-answer, and see the same events."""
        assert_same(self._calm, self._ask(disturb, ask))

    def told(self, disturb: Disturb) -> Answers:
        """Ask again, disturb it in mid-answer; what is told then."""
        return self._ask(disturb, answers)

    def _ask(self, disturb: Disturb | None, asked: Ask) -> Answers:
        async def ask(transport: NatsTransport, subjects: Subjects) -> Answers:
            halfway = asyncio.Event()
            asking = asyncio.ensure_future(asked(transport, subjects, f"round-{next(self._tags)}", halfway))
            await halfway.wait()
            if disturb:
                await disturb(self._here.pipeline)
            return await asking

        return self._here.do(ask, seconds=240)
