"""A decoder is lost: another one goes on with what clients were told, on the memory transport."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from engine.contract.history import prompt_key
from engine.contract.ids import RequestId
from engine.contract.prompt import Event, FinalEvent, TokenEvent, decode_event, encode_event
from engine.decoder.answer import Answer, EndRules
from engine.decoder.resume import resume
from engine.decoder.sequence import Sequence
from engine.decoder.tokenizer import ByteStream
from engine.transport.base import EventLog, Inbox, WorkQueue
from engine.transport.durable import ACK_WAIT, open_events, open_queue
from tests.decoder.local_pipeline import SUBJECTS, Clock, Pipeline, answer_to, pipeline

PROMPTS = ["why", "a longer prompt that takes several chunks to send", "x", "who are you and what do you want"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that says nothing counts as gone at once."""
    monkeypatch.setattr("engine.decoder.pipeline.SUSPECT_SECONDS", 0.05)


def run(test: Callable[[Pipeline], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with pipeline(**settings) as here:
            await test(here)

    asyncio.run(main())


async def log_of(here: Pipeline, writer: str = "") -> EventLog:
    return await open_events(here.transport, SUBJECTS, writer=writer)


async def queue_of(here: Pipeline) -> WorkQueue:
    return await open_queue(here.transport, SUBJECTS)


@asynccontextmanager
async def asked(here: Pipeline, prompt: str, name: str, **fields: Any) -> AsyncIterator[Inbox]:
    """What a plain subscriber gets of one prompt."""
    async with here.transport.subscribe(SUBJECTS.tokens(name)) as inbox:
        data = orjson.dumps({"id": name, "prompt": prompt, **fields})
        await here.transport.publish(SUBJECTS.prompt, data)
        yield inbox


async def events_until_final(inbox: Inbox, seen: asyncio.Event | None = None, after: int = 5) -> list[Event]:
    events: list[Event] = []
    while not events or not isinstance(events[-1], FinalEvent):
        events.append(decode_event((await inbox.get()).data))
        if seen and len(events) == after:
            seen.set()
    return events


async def replace_decoder(here: Pipeline, old: asyncio.Task[None]) -> asyncio.Task[None]:
    """Kill it, let the queue notice, start another."""
    await here.kill(old)
    assert isinstance(here.broker.clock, Clock)
    here.broker.clock.ahead += ACK_WAIT
    here.serving.clear()
    decoder = await here.start_decoder()
    await here.serving.wait()
    return decoder


def assert_whole(events: list[Event], text: str) -> None:
    *tokens, final = events
    assert [event.seq for event in events] == list(range(len(events)))
    assert "".join(event.text for event in tokens) == final.text == text
    assert tuple(i for event in tokens for i in event.ids) == final.ids


@pytest.mark.parametrize("losses", [1, 3])
def test_answers_go_on_after_a_killed_decoder_without_gap_or_duplicate(losses: int) -> None:
    async def test(here: Pipeline) -> None:
        decoder = (await here.start())[-1]

        async def ask(number: int, seen: asyncio.Event) -> list[Event]:
            async with asked(here, PROMPTS[number], f"r{number}", max_tokens=100) as inbox:
                return await events_until_final(inbox, seen)

        halfway = [asyncio.Event() for _ in PROMPTS]
        asking = [asyncio.create_task(ask(number, seen)) for number, seen in enumerate(halfway)]
        await asyncio.gather(*(seen.wait() for seen in halfway))
        for _ in range(losses):
            decoder = await replace_decoder(here, decoder)
        for prompt, events in zip(PROMPTS, await asyncio.gather(*asking), strict=True):
            assert_whole(events, answer_to(prompt, 100))
        assert sum(decoder.resumed for decoder in here.decoders) >= len(PROMPTS)

    run(test, whole=False)


def test_several_answers_to_one_prompt_go_on_each_where_it_was() -> None:
    async def test(here: Pipeline) -> None:
        decoder, fields = (await here.start())[-1], {"n": 3, "max_tokens": 60, "temperature": 1.0, "logprobs": True}
        async with asked(here, "why", "calm", seed=5, **fields) as inbox:
            calm = (await events_until_final(inbox))[-1]
        async with asked(here, "why", "lost", seed=5, **fields) as inbox:
            first = [decode_event((await inbox.get()).data) for _ in range(40)]
            await replace_decoder(here, decoder)
            events = [*first, *await events_until_final(inbox)]
        assert [event.seq for event in events] == list(range(len(events)))
        last = events[-1]
        assert isinstance(calm, FinalEvent)
        assert isinstance(last, FinalEvent)
        assert (last.choices, last.logprobs) == (calm.choices, calm.logprobs)
        for index, choice in enumerate(last.choices):
            mine = [event for event in events if isinstance(event, TokenEvent) and event.index == index]
            assert "".join(event.text for event in mine) == choice.text

    run(test, whole=False)


def test_a_finished_answer_is_acknowledged_and_not_given_again() -> None:
    async def test(here: Pipeline) -> None:
        calm = [event async for event in here.client.generate(id="r", prompt="why", max_tokens=5)]
        queue, log = await queue_of(here), await log_of(here, "lost decoder")
        data, place = orjson.dumps({"id": "again", "prompt": "why", "max_tokens": 5}), 0
        async with here.transport.subscribe(SUBJECTS.tokens("again")) as inbox:
            key = prompt_key(2, data)
            for event in calm:
                place = await log.append("again", encode_event(event), prompt=key, after=place)
            assert (await queue.put(data)).sequence == 2
            assert (await here.client.complete(prompt="x", max_tokens=5)).text == answer_to("x", 5)  # behind it
            assert inbox.waiting == len(calm)
        while (depth := await queue.depth()).working:  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0)
        assert (depth.pending, depth.dead) == (0, 0)

    run(test)


def test_a_decoder_that_was_overtaken_falls_silent_and_leaves_the_prompt_alone() -> None:
    async def test(here: Pipeline) -> None:
        log, queue = await log_of(here, "another decoder"), await queue_of(here)
        async with asked(here, "why", "r", max_tokens=150) as inbox:
            await inbox.get()
            logged = await log.read("r")
            last = decode_event(logged[-1].data)
            theirs = TokenEvent(request=RequestId("r"), seq=last.seq + 1, text="theirs", ids=(1,))
            await log.append("r", encode_event(theirs), prompt=logged[-1].prompt, after=logged[-1].place)
            while here.decoders[0].open_requests:  # noqa: ASYNC110  nothing tells of it
                await asyncio.sleep(0)
            assert decode_event((await log.read("r"))[-1].data) == theirs
        assert (await queue.depth()).working == 1  # theirs to acknowledge
        assert (await here.client.complete(prompt="x", max_tokens=5)).text == answer_to("x", 5)

    run(test)


def test_an_answer_whose_beginning_is_no_longer_kept_ends_in_an_error_with_the_next_number() -> None:
    async def test(here: Pipeline) -> None:
        log, queue = await log_of(here, "lost decoder"), await queue_of(here)
        data = orjson.dumps({"id": "r", "prompt": "why"})
        event = TokenEvent(request=RequestId("r"), seq=7, text="x", ids=(1,))
        await log.append("r", encode_event(event), prompt=prompt_key(1, data), after=0)
        async with here.transport.subscribe(SUBJECTS.tokens("r")) as inbox:
            await queue.put(data)
            [final] = await events_until_final(inbox)
        assert isinstance(final, FinalEvent)
        assert (final.seq, final.error and final.error["code"]) == (8, "internal")

    run(test)


def test_a_prompt_that_took_its_decoders_along_again_and_again_becomes_a_dead_letter() -> None:
    async def test(here: Pipeline) -> None:
        queue = await queue_of(here)
        async with asked(here, "why", "r") as inbox:
            for _ in range(3):
                [job] = await queue.take(1, timeout=5)
                await job.give_back(0.0)
            async with here.transport.subscribe(SUBJECTS.dead) as dead:
                await here.start()
                [final] = await events_until_final(inbox)
                assert "3 deliveries" in orjson.loads((await dead.get()).data)["reason"]
        assert isinstance(final, FinalEvent)
        assert (final.seq, final.error and final.error["code"]) == (0, "too_many_deliveries")

    run(test, whole=False)


def test_an_id_used_again_after_its_answer_is_another_request() -> None:
    async def test(here: Pipeline) -> None:
        for prompt in PROMPTS:
            async with asked(here, prompt, "same", max_tokens=8) as inbox:
                assert_whole(await events_until_final(inbox), answer_to(prompt, 8))

    run(test)


def test_an_id_that_another_decoder_answers_is_refused_in_silence() -> None:
    async def test(here: Pipeline) -> None:
        log = await log_of(here, "another decoder")
        event = TokenEvent(request=RequestId("r"), seq=0, text="x", ids=(1,))
        await log.append("r", encode_event(event), prompt="their prompt", after=0)
        async with here.transport.subscribe(SUBJECTS.dead) as dead, asked(here, "why", "r") as inbox:
            assert "duplicate_id" in orjson.loads((await dead.get()).data)["reason"]
            assert inbox.take() is None

    run(test)


def test_a_decoder_that_waits_for_another_to_stop_takes_no_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(here: Pipeline) -> None:
        await here.start()
        monkeypatch.setattr("engine.decoder.pipeline.SUSPECT_SECONDS", 60.0)
        await here.start_decoder()
        for _ in range(20):
            await here.client.complete(prompt="why", max_tokens=3)
        assert (await here.client.complete(prompt="why", max_tokens=3)).text == answer_to("why", 3)
        now = [event async for event in here.client.generate_now(prompt="why", max_tokens=3)]
        assert now[-1].text == answer_to("why", 3)

    run(test, whole=False)


def test_a_client_that_missed_events_reads_them_from_the_log() -> None:
    async def test(here: Pipeline) -> None:
        lost = {3, 4, 9}

        def intercept(subject: str, data: bytes) -> list[bytes]:
            is_lost = subject == SUBJECTS.tokens("r") and decode_event(data).seq in lost
            return [] if is_lost else [data]

        here.broker.intercept = intercept
        events = [event async for event in here.client.generate(id="r", prompt="why", max_tokens=20)]
        assert_whole(events, answer_to("why", 20))

    run(test)


TEXT = "ein Ärger, STEPS nicht wahr? Ö"


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("cut", range(len(TEXT.encode())))
def test_text_goes_on_behind_what_was_shown_wherever_the_first_decoder_was(cut: int, size: int) -> None:
    def sequence() -> Sequence:
        rules = EndRules(frozenset(), len(tokens), stop=("STEP!", "wahr?"))
        answer = Answer(rules, ByteStream([bytes([i]) for i in range(256)]))
        return Sequence(RequestId("r"), [1, 2], 2, 2 + len(tokens), answer, arrived=0.0)

    tokens = list(TEXT.encode())
    first, told = sequence(), list[TokenEvent]()
    held: tuple[int, ...] = ()
    for at in range(0, cut, size):
        delta = first.answer.accept(tokens[at : min(at + size, cut)])
        held += delta.ids
        if delta.text:
            told.append(TokenEvent(request=RequestId("r"), seq=len(told), text=delta.text, ids=held))
            held = ()
    second = sequence()
    resume([second], told)
    shown = "".join(event.text for event in told)
    assert second.answer.text == shown
    known = len(second.answer.ids)
    rest = second.answer.accept(tokens[known:])
    assert shown + rest.text == second.answer.text == "ein Ärger, STEPS nicht "
    assert second.tokens[:2] == [1, 2]
    assert second.tokens[2:] == tokens[:known]
