"""The decoder's service with real workers on the memory transport."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import orjson
import pytest

from engine.contract.errors import BrokerError, ErrorCode, OverloadedError, PromptError
from engine.contract.messages import Step, StepResult
from engine.contract.prompt import FinalEvent, TokenEvent, decode_event
from engine.decoder.fleet import Fleet
from engine.decoder.pipeline import Pipeline as DecoderPipeline
from engine.transport.durable import open_queue
from engine.transport.memory import MemoryBroker, MemoryTransport
from engine.wire.frame import decode
from tests.decoder.local_pipeline import SUBJECTS, Pipeline, answer_to, pipeline

PROMPTS = ["why", "a longer prompt that takes several chunks to send", "x", "who are you and what do you want"]


def run(test: Callable[[Pipeline], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with pipeline(**settings) as here:
            await test(here)

    asyncio.run(main())


async def ask_all(here: Pipeline, count: int = 12) -> list[FinalEvent]:
    asked = [here.client.complete(prompt=prompt, max_tokens=count) for prompt in PROMPTS]
    return list(await asyncio.gather(*asked))


def assert_right(finals: list[FinalEvent], count: int = 12) -> None:
    assert [final.text for final in finals] == [answer_to(prompt, count) for prompt in PROMPTS]


def test_several_prompts_at_once_are_answered_right() -> None:
    async def test(here: Pipeline) -> None:
        finals = await ask_all(here)
        assert_right(finals)
        assert {final.finish_reason for final in finals} == {"length"}
        assert [final.usage.prompt_tokens for final in finals] == [len(prompt) for prompt in PROMPTS]

    run(test)


@pytest.mark.parametrize("stages", [1, 3])
def test_the_number_of_stages_makes_no_difference(stages: int) -> None:
    async def test(here: Pipeline) -> None:
        assert_right(await ask_all(here))

    run(test, stages=stages)


def test_events_are_numbered_and_add_up_to_the_final_one() -> None:
    async def test(here: Pipeline) -> None:
        events = [event async for event in here.client.generate(prompt="why", max_tokens=9)]
        *tokens, final = events
        assert [event.seq for event in events] == list(range(len(events)))
        assert isinstance(final, FinalEvent)
        assert "".join(event.text for event in tokens) == final.text
        assert tuple(i for event in tokens for i in event.ids) == final.ids

    run(test)


def test_a_wrong_prompt_with_the_id_of_a_running_one_does_not_disturb_its_answer() -> None:
    async def test(here: Pipeline) -> None:
        async with here.transport.subscribe(SUBJECTS.dead) as dead:
            events = here.client.generate(prompt="why", id="mine", max_tokens=100)
            found = [await anext(events)]
            await here.transport.publish(SUBJECTS.prompt, b'{"id": "mine", "prompt": "why", "nonsense": 1}')
            buried = await dead.get()
            found += [event async for event in events]
        assert orjson.loads(buried.data)["sequence"] == 2  # the wrong one, not the one that runs
        assert isinstance(found[-1], FinalEvent)
        assert (found[-1].text, found[-1].finish_reason) == (answer_to("why", 100), "length")

    run(test)


def test_a_plain_text_prompt_gets_its_id_from_the_queue() -> None:
    async def test(here: Pipeline) -> None:
        async with here.transport.subscribe(f"{SUBJECTS.root}.tokens.*") as inbox:
            await here.transport.publish(SUBJECTS.prompt, b"why")
            final = None
            while not isinstance(final, FinalEvent):
                final = decode_event((await inbox.get()).data)
            assert (final.request, final.text) == ("q1", answer_to("why", 10))

    run(test)


def test_a_prompt_published_before_anything_runs_is_answered_later() -> None:
    async def test(here: Pipeline) -> None:
        asking = asyncio.create_task(here.client.complete(prompt="why", max_tokens=5))
        await here.start_decoder()
        await here.start_worker(1)
        await here.start_worker(0)
        assert (await asking).text == answer_to("why", 5)

    run(test, whole=False)


def test_request_and_reply_streams_the_same_events() -> None:
    async def test(here: Pipeline) -> None:
        events = [event async for event in here.client.generate_now(prompt="why", max_tokens=6)]
        assert isinstance(events[0], TokenEvent)
        assert events[-1].text == answer_to("why", 6)

    run(test)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "invalid_prompt"),
        (b"\xff", "invalid_prompt"),
        (b"{", "invalid_prompt"),
        (b'{"prompt": "x", "colour": 1}', "unknown_field"),
        (b'{"prompt": "x", "max_tokens": 0}', "invalid_prompt"),
        (b"x" * 300, "prompt_too_long"),
    ],
)
def test_a_bad_prompt_ends_in_an_error_event_and_a_dead_letter(data: bytes, code: str) -> None:
    async def test(here: Pipeline) -> None:
        async with here.transport.subscribe(SUBJECTS.tokens("q1")) as inbox:  # type: ignore[arg-type]
            await here.transport.publish(SUBJECTS.prompt, data)
            final = decode_event((await inbox.get()).data)
            assert isinstance(final, FinalEvent)
            assert final.error is not None
            assert (final.finish_reason, final.error["code"]) == ("error", code)
        assert (await here.client.complete(prompt="why", max_tokens=3)).text == answer_to("why", 3)

    run(test)


def test_a_request_larger_than_the_cache_is_refused_and_the_others_go_on() -> None:
    async def test(here: Pipeline) -> None:
        await here.start(blocks=8)
        await here.client.complete(prompt="why", max_tokens=3)
        with pytest.raises(Exception, match="--kv-memory"):
            await here.client.complete(prompt="why", max_tokens=100)
        assert (await here.client.complete(prompt="why", max_tokens=3)).text == answer_to("why", 3)

    run(test, whole=False)


def test_more_requests_than_blocks_wait_and_are_all_answered() -> None:
    async def test(here: Pipeline) -> None:
        await here.start(blocks=10)
        assert_right(await ask_all(here))

    run(test, whole=False)


def test_cancelling_ends_a_request_and_leaves_the_others_alone() -> None:
    async def test(here: Pipeline) -> None:
        async def cancelled() -> FinalEvent:
            final = None
            async for event in here.client.generate(id="stop-me", prompt="why", max_tokens=190):
                if event.seq == 1:
                    await here.client.cancel("stop-me")
                final = event
            assert isinstance(final, FinalEvent)
            return final

        first, others = await asyncio.gather(cancelled(), ask_all(here))
        assert first.finish_reason == "cancelled"
        assert answer_to("why", 190).startswith(first.text)
        assert_right(others)

    run(test)


def test_a_deadline_that_passes_while_waiting_ends_the_request_and_no_other() -> None:
    async def test(here: Pipeline) -> None:
        running = here.client.generate(prompt="why", max_tokens=150, deadline_ms=60_000)
        await anext(running)
        waiting = asyncio.create_task(here.client.complete(prompt="x", max_tokens=5))
        with pytest.raises(PromptError, match="waited for one of 1 places") as caught:
            await here.client.complete(prompt="x", max_tokens=5, deadline_ms=1)
        assert caught.value.code is ErrorCode.DEADLINE_PASSED
        events = [event async for event in running]
        assert events[-1].text == answer_to("why", 150)
        assert (await waiting).text == answer_to("x", 5)

    run(test, max_running=1)


def test_a_deadline_is_kept_while_stages_are_missing() -> None:
    async def test(here: Pipeline) -> None:
        await here.start_decoder()
        with pytest.raises(PromptError, match="waited for a complete pipeline"):
            await here.client.complete(prompt="why", deadline_ms=20)

    run(test, whole=False)


def test_a_higher_priority_is_served_first() -> None:
    async def test(here: Pipeline) -> None:
        ended: list[str] = []

        async def ask(name: str, priority: int) -> None:
            await here.client.complete(id=name, prompt="why", max_tokens=20, priority=priority)
            ended.append(name)

        running = here.client.generate(prompt="why", max_tokens=150)
        await anext(running)
        asked = [asyncio.create_task(ask(name, priority)) for name, priority in (("low", -3), ("mid", 0), ("high", 9))]
        async for _ in running:
            pass
        await asyncio.gather(*asked)
        assert ended == ["high", "mid", "low"]

    run(test, max_running=1)


def test_with_all_places_taken_a_request_is_told_at_once_when_to_come_back() -> None:
    async def test(here: Pipeline) -> None:
        running = here.client.generate(prompt="why", max_tokens=150)
        await anext(running)
        [refused] = [event async for event in here.client.generate_now(prompt="x")]
        assert isinstance(refused, FinalEvent)
        assert refused.error is not None
        assert (refused.error["code"], refused.error["retry_after"]) == ("overloaded", "5")
        *_, last = [event async for event in running]
        assert last.text == answer_to("why", 150)

    run(test, max_running=1, max_waiting=0)


def test_a_full_queue_refuses_at_once_and_takes_prompts_again_when_there_is_room() -> None:
    async def test(here: Pipeline) -> None:
        here.broker.max_prompts = 2
        early = [asyncio.create_task(here.client.complete(prompt="why", max_tokens=5)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="try again in 5 s"):
            await here.client.complete(prompt="x", max_tokens=5)
        await here.start()
        assert [final.text for final in await asyncio.gather(*early)] == [answer_to("why", 5)] * 2
        assert (await here.client.complete(prompt="x", max_tokens=5)).text == answer_to("x", 5)

    run(test, whole=False)


def test_an_id_in_use_is_refused_and_the_running_request_goes_on() -> None:
    async def test(here: Pipeline) -> None:
        running = here.client.generate(id="twin", prompt="why", max_tokens=100)
        await anext(running)
        second = [event async for event in here.client.generate_now(id="twin", prompt="x")]
        assert isinstance(second[0], FinalEvent)
        assert second[0].error is not None
        assert second[0].error["code"] == "duplicate_id"
        last = None
        async for event in running:
            last = event
        assert isinstance(last, FinalEvent)
        assert last.text == answer_to("why", 100)

    run(test)


def losing(what: type, number: int, *, copies: int) -> Callable[[str, bytes], Iterable[bytes]]:
    """Deliver the `number`-th frame of that type into a stage or to the decoder `copies` times."""
    seen = 0

    def intercept(subject: str, data: bytes) -> Iterable[bytes]:
        nonlocal seen
        if data[:4] != b"SHRD" or not isinstance(decode(data), what):
            return [data]
        seen += 1
        return [data] * (copies if seen == number else 1)

    return intercept


@pytest.mark.parametrize("number", [3, 4, 9, 20])
@pytest.mark.parametrize("what", [Step, StepResult])
def test_a_lost_frame_changes_no_answer(what: type, number: int) -> None:
    async def test(here: Pipeline) -> None:
        here.broker.intercept = losing(what, number, copies=0)
        assert_right(await ask_all(here))
        assert here.decoders[0].replays == 1

    run(test, step_timeout=2.0)  # no step is that late on a busy machine


@pytest.mark.parametrize("number", [1, 4, 9])
@pytest.mark.parametrize("what", [Step, StepResult])
def test_a_doubled_frame_is_computed_once_and_costs_no_replay(what: type, number: int) -> None:
    async def test(here: Pipeline) -> None:
        here.broker.intercept = losing(what, number, copies=2)
        assert_right(await ask_all(here))
        assert here.decoders[0].replays == 0

    run(test)


@pytest.mark.parametrize("index", [0, 1])
def test_a_killed_worker_is_replaced_and_no_answer_changes(index: int) -> None:
    async def test(here: Pipeline) -> None:
        workers = await here.start()
        asking = asyncio.create_task(ask_all(here, 40))
        async with here.transport.subscribe(f"{SUBJECTS.root}.tokens.*") as inbox:
            for _ in range(8):
                await inbox.get()
        await here.kill(workers[index])
        await here.start_worker(index)
        assert_right(await asking, 40)
        assert here.decoders[0].replays >= 1

    run(test, whole=False)


def test_an_outage_longer_than_any_step_is_waited_for() -> None:
    async def test(here: Pipeline) -> None:
        asking = asyncio.create_task(ask_all(here, 40))
        async with here.transport.subscribe(f"{SUBJECTS.root}.tokens.*") as inbox:
            for _ in range(8):
                await inbox.get()
        here.outage()
        while here.decoders[0].running:  # noqa: ASYNC110  until it has given up the steps that were out
            await asyncio.sleep(0.01)
        here.outage(over=True)
        assert_right(await asking, 40)

    run(test, step_timeout=0.1)


def test_after_an_outage_steps_that_were_out_are_sent_again_at_once() -> None:
    """A test that waits for the deadline of a step instead runs into its own."""

    async def test(here: Pipeline) -> None:
        lost = asyncio.Event()

        def swallow_the_first(subject: str, data: bytes) -> list[bytes]:
            if not subject.startswith(SUBJECTS.stage(0, 0).removesuffix("0")) or lost.is_set():
                return [data]
            lost.set()
            return []

        here.broker.intercept = swallow_the_first
        asking = asyncio.create_task(here.client.complete(prompt="why", max_tokens=10))
        await lost.wait()
        here.outage()
        here.outage(over=True)
        assert (await asking).text == answer_to("why", 10)

    run(test, step_timeout=100.0)


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_prompt_that_crashes_a_stage_is_refused_and_those_that_came_with_it_are_answered(place: int) -> None:
    async def test(here: Pipeline) -> None:
        await here.start(poison=ord("#"))
        prompts = [f"prompt {number}" for number in range(4)]
        asked = [here.client.complete(prompt=prompt, max_tokens=12) for prompt in prompts]
        asked.insert(place, here.client.complete(prompt="this one # does it", max_tokens=12))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        poison = answers.pop(place)
        assert isinstance(poison, PromptError) and "lost 5 times in a row on this request" in str(poison)
        assert [getattr(answer, "text", answer) for answer in answers] == [answer_to(p, 12) for p in prompts]
        queue = await open_queue(here.transport, SUBJECTS)
        [letter] = await queue.letters()
        assert "this one # does it" in letter.data and "lost 5 times" in letter.reason

    run(test, whole=False)


def test_a_second_decoder_waits_until_the_first_has_stopped() -> None:
    async def test(here: Pipeline) -> None:
        stop = asyncio.Event()
        first = await here.start_decoder(stop)
        assert (await here.client.complete(prompt="why", max_tokens=3)).text == answer_to("why", 3)
        await here.start_decoder()
        stop.set()
        await asyncio.wait({first})
        assert (await here.client.complete(prompt="who", max_tokens=3)).text == answer_to("who", 3)

    async def main() -> None:
        async with pipeline(whole=False) as here:
            for index in range(2):
                await here.start_worker(index)
            await test(here)

    asyncio.run(main())


def test_stopping_finishes_what_was_accepted() -> None:
    async def test(here: Pipeline) -> None:
        stop = asyncio.Event()
        *_, decoder = await here.start(stop)
        answer = here.client.generate(prompt="why", max_tokens=100)
        await anext(answer)
        stop.set()
        last = None
        async for event in answer:
            last = event
        assert isinstance(last, FinalEvent)
        assert last.text == answer_to("why", 100)
        await asyncio.wait({decoder})
        assert decoder.done()

    run(test, whole=False)


def test_an_id_used_again_gives_the_same_prompt_its_answer_and_another_prompt_none() -> None:
    async def test(here: Pipeline) -> None:
        assert (await here.client.complete(id="mine", prompt="why", max_tokens=3)).text == answer_to("why", 3)
        assert (await here.client.complete(id="mine", prompt="why", max_tokens=3)).text == answer_to("why", 3)
        with pytest.raises(PromptError, match="another id") as caught:
            await here.client.complete(id="mine", prompt="why", max_tokens=4)
        assert caught.value.code is ErrorCode.DUPLICATE_ID
        running = here.client.generate(id="yours", prompt="why", max_tokens=100)
        await anext(running)
        [refused] = [event async for event in here.client.generate(id="yours", prompt="x")]
        assert isinstance(refused, FinalEvent) and refused.error is not None
        *_, final = [event async for event in running]
        assert final.text == answer_to("why", 100)

    run(test)


def test_a_lease_that_is_not_a_decoder_s_is_named() -> None:
    async def main() -> None:
        transport = MemoryTransport(MemoryBroker())
        lease = await transport.lease(bucket="b", key="pipeline")
        await lease.write(b"[1]", after=0)
        opening = DecoderPipeline(transport, SUBJECTS, lease, Fleet(split="s", stages=1), decoder="d")
        with pytest.raises(BrokerError, match="written by somebody else"):
            await opening.open()

    asyncio.run(main())
