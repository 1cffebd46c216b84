"""The rules of every transport, run on the in-process twin and on a real broker."""

import asyncio

import orjson
import pytest

from engine.contract.errors import BrokerError, LeaseLostError, NoResponderError, OvertakenError
from engine.contract.history import LoggedEvent
from engine.transport.base import EventLog, Transport, WorkQueue
from tests.transport.conftest import WithTwo


def test_messages_come_in_the_order_they_were_sent(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        async with two.subscribe("a.b") as inbox:
            for i in range(100):
                await one.publish("a.b", str(i).encode())
            assert [int((await inbox.get()).data) for _ in range(100)] == list(range(100))

    with_two(test)


@pytest.mark.parametrize("pattern", ["a.*", "a.>", ">", "*.b"])
def test_wildcards_match(with_two: WithTwo, pattern: str) -> None:
    async def test(one: Transport, two: Transport) -> None:
        async with two.subscribe(pattern) as inbox:
            await one.publish("c", b"not for > only")
            await one.publish("a.b", b"x")
            message = await inbox.get()
            while message.subject != "a.b":
                message = await inbox.get()
            assert message.data == b"x"

    with_two(test)


def test_nothing_is_missed_once_subscribed(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        for i in range(50):
            async with two.subscribe(f"s.{i}") as inbox:
                await one.publish(f"s.{i}", b"x")
                assert (await inbox.get()).data == b"x"

    with_two(test)


def test_a_message_for_nobody_comes_back_to_its_sender(with_two: WithTwo) -> None:
    async def test(one: Transport, _: Transport) -> None:
        async with one.subscribe("done.*") as inbox:
            await one.publish("nobody.here", b"x", reply="done.7")
            message = await inbox.get()
            assert (message.no_responder, message.subject) == (True, "done.7")

    with_two(test)


def test_nobody_else_learns_of_a_message_for_nobody(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        async with two.subscribe("done.7") as inbox:
            await one.publish("nobody.here", b"x", reply="done.7")
            await one.publish("done.7", b"the next message")
            assert (await inbox.get()).data == b"the next message"

    with_two(test)


def test_an_empty_message_is_not_mistaken_for_no_responder(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        async with two.subscribe("done.7") as inbox:
            await one.publish("done.7", b"")
            assert not (await inbox.get()).no_responder

    with_two(test)


def test_each_message_goes_to_one_member_of_a_group(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        async with two.subscribe("g", group="x") as first, two.subscribe("g", group="x") as second:
            for _ in range(20):
                await one.publish("g", b"x")
            await one.barrier()
            await two.barrier()
            assert first.waiting + second.waiting == 20

    with_two(test)


def test_a_request_brings_its_answer(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        async with two.subscribe("ask") as inbox:

            async def answer() -> None:
                message = await inbox.get()
                await two.publish(message.reply, message.data + b"!")

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(answer())
                assert (await one.request("ask", b"well", timeout=5)).data == b"well!"

    with_two(test)


def test_a_request_to_nobody_fails_at_once(with_two: WithTwo) -> None:
    async def test(one: Transport, _: Transport) -> None:
        with pytest.raises(NoResponderError):
            await one.request("nobody", b"x", timeout=20)

    with_two(test)


def test_a_request_without_an_answer_times_out(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        async with two.subscribe("silent"):
            with pytest.raises(TimeoutError):
                await one.request("silent", b"x", timeout=0.1)

    with_two(test)


def test_a_message_of_max_payload_passes_and_one_byte_more_is_refused(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        async with two.subscribe("big") as inbox:
            await one.publish("big", bytes(one.max_payload))
            assert len((await inbox.get()).data) == one.max_payload
            with pytest.raises(BrokerError, match="max_payload"):
                await one.publish("big", bytes(one.max_payload + 1))
            await one.publish("big", b"still connected")
            assert (await inbox.get()).data == b"still connected"

    with_two(test)


def test_a_full_inbox_drops_and_counts(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        async with two.subscribe("flood", limit=3) as inbox:
            for _ in range(5):
                await one.publish("flood", b"x")
            await one.barrier()
            await two.barrier()
            assert (inbox.waiting, inbox.dropped) == (3, 2)

    with_two(test)


def test_an_arrival_sets_the_wake_event(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        wake = asyncio.Event()
        async with two.subscribe("w", wake=wake) as inbox:
            await one.publish("w", b"x")
            await wake.wait()
            assert inbox.take() is not None
            assert inbox.take() is None

    with_two(test)


async def queue_of(transport: Transport) -> WorkQueue:
    return await transport.work_queue(stream="Q", subject="q.prompt", dead_stream="D", dead_subject="q.dead")


def test_a_plain_publish_is_captured_by_the_queue(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        queue = await queue_of(two)
        await one.publish("q.prompt", b"hello")
        [job] = await queue.take(5, timeout=5)
        assert (job.data, job.deliveries) == (b"hello", 1)
        await job.done()
        assert (await queue.depth()).working == 0

    with_two(test)


def test_an_empty_queue_gives_nothing(with_two: WithTwo) -> None:
    async def test(one: Transport, _: Transport) -> None:
        assert await (await queue_of(one)).take(5, timeout=0.1) == []

    with_two(test)


def test_a_job_given_back_comes_again_and_says_so(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        queue = await queue_of(one)
        sequence = (await (await queue_of(two)).put(b"x")).sequence
        [job] = await queue.take(1, timeout=5)
        assert job.sequence == sequence
        await job.give_back(0.0)
        [again] = await queue.take(1, timeout=5)
        assert (again.sequence, again.deliveries) == (sequence, 2)

    with_two(test)


def test_each_job_goes_to_one_taker(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        first, second = await queue_of(one), await queue_of(two)
        for i in range(6):
            await first.put(str(i).encode())
        taken = await first.take(3, timeout=5)
        assert 1 <= len(taken) <= 3
        while len(taken) < 6:
            taken += await second.take(10, timeout=5)
        assert sorted(job.data for job in taken) == [b"0", b"1", b"2", b"3", b"4", b"5"]

    with_two(test)


def test_a_buried_job_is_a_dead_letter_and_does_not_come_again(with_two: WithTwo) -> None:
    async def test(one: Transport, _: Transport) -> None:
        queue = await queue_of(one)
        await queue.put(b"poison")
        [job] = await queue.take(1, timeout=5)
        await job.bury("too bad")
        depth = await queue.depth()
        assert (depth.pending, depth.working, depth.dead) == (0, 0, 1)

    with_two(test)


def test_the_depth_tells_waiting_from_working(with_two: WithTwo) -> None:
    async def test(one: Transport, _: Transport) -> None:
        queue = await queue_of(one)
        for _i in range(3):
            await queue.put(b"x")
        await queue.take(1, timeout=5)
        depth = await queue.depth()
        assert (depth.pending, depth.working) == (2, 1)

    with_two(test)


def test_a_lease_changes_hands_only_by_its_revision(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        mine, theirs = await one.lease(bucket="L", key="k"), await two.lease(bucket="L", key="k")
        assert await mine.read() is None
        first = await mine.write(b"me", after=0)
        assert await theirs.read() == (first, b"me")
        with pytest.raises(LeaseLostError):
            await theirs.write(b"them", after=0)
        second = await theirs.write(b"them", after=first)
        assert second > first
        with pytest.raises(LeaseLostError):
            await mine.write(b"me again", after=first)

    with_two(test)


def test_a_message_id_put_twice_is_stored_once(with_two: WithTwo) -> None:
    async def test(one: Transport, _: Transport) -> None:
        queue = await queue_of(one)
        first, second = [await queue.put(b"x", message_id="m") for _ in range(2)]
        assert first.sequence == second.sequence
        assert (first.duplicate, second.duplicate) == (False, True)
        assert not (await queue.put(b"x", message_id="n")).duplicate
        assert (await queue.depth()).pending == 2

    with_two(test)


def test_a_prompt_of_max_payload_passes_and_one_byte_more_is_refused(with_two: WithTwo) -> None:
    async def test(one: Transport, _: Transport) -> None:
        queue = await queue_of(one)
        await queue.put(bytes(one.max_payload))
        with pytest.raises(BrokerError, match="max_payload"):
            await queue.put(bytes(one.max_payload + 1))
        assert (await queue.depth()).pending == 1

    with_two(test)


@pytest.mark.parametrize("byte", [b"\0", b"\xff", b'"'])
def test_a_prompt_of_any_size_and_content_can_be_buried(with_two: WithTwo, byte: bytes) -> None:
    async def test(one: Transport, two: Transport) -> None:
        queue = await queue_of(one)
        await queue.put(byte * one.max_payload)
        [job] = await queue.take(1, timeout=5)
        async with two.subscribe("q.dead") as letters:
            await job.bury("too bad")
            letter = orjson.loads((await letters.get()).data)
        assert (letter["sequence"], letter["reason"], letter["bytes"]) == (job.sequence, "too bad", one.max_payload)
        assert (await queue.depth()).working == 0

    with_two(test)


def test_a_job_is_offered_to_others_once_nobody_waits_for_it_here(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        first, second = await queue_of(one), await queue_of(two)
        leaving = asyncio.create_task(first.take(5, timeout=30))
        await first.put(b"mine")
        [job] = await leaving
        await job.done()
        leaving = asyncio.create_task(first.take(5, timeout=30))
        await one.barrier()
        leaving.cancel()
        await asyncio.wait({leaving})
        await one.barrier()
        await second.put(b"x")
        [job] = await second.take(1, timeout=5)
        assert (job.data, job.deliveries) == (b"x", 1)

    with_two(test)


def test_a_job_given_back_with_a_delay_comes_after_it(with_two: WithTwo) -> None:
    async def test(one: Transport, _: Transport) -> None:
        queue = await queue_of(one)
        await queue.put(b"x")
        [job] = await queue.take(1, timeout=5)
        await job.give_back(0.2)
        assert await queue.take(1, timeout=0.01) == []
        assert [again.data for again in await queue.take(1, timeout=5)] == [b"x"]

    with_two(test)


def test_who_publishes_a_prompt_with_a_reply_subject_learns_its_sequence(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        await queue_of(one)
        answer = orjson.loads((await two.request("q.prompt", b"x", timeout=5)).data)
        assert (answer["stream"], answer["seq"]) == ("Q", 1)

    with_two(test)


def test_a_new_lease_is_refused_while_there_is_one(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        await (await one.lease(bucket="L", key="k")).write(b"me", after=0)
        lease = await two.lease(bucket="L", key="k")
        with pytest.raises(LeaseLostError):
            await lease.write(b"them", after=0)
        assert await lease.read() == (1, b"me")

    with_two(test)


async def log_of(transport: Transport, writer: str = "") -> EventLog:
    return await transport.event_log(stream="E", subject="q.events", shown="q.tokens", writer=writer)


def test_what_the_event_log_takes_is_shown_and_can_be_read_again(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        log = await log_of(one, "one")
        async with two.subscribe("q.tokens.r") as inbox:
            first = await log.append("r", b"a", prompt="p", after=0)
            await log.append("other", b"x", prompt="o", after=0)
            second = await log.append("r", b"b", prompt="p", after=first)
            assert [(await inbox.get()).data, (await inbox.get()).data] == [b"a", b"b"]
        expected = [LoggedEvent(b"a", "p", first), LoggedEvent(b"b", "p", second)]
        assert await (await log_of(two)).read("r") == expected
        assert await log.read("nobody") == []

    with_two(test)


def test_an_event_behind_another_than_the_last_is_neither_taken_nor_shown(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        mine, theirs = await log_of(one, "one"), await log_of(two, "two")
        place = await mine.append("r", b"a", prompt="p", after=0)
        async with one.subscribe("q.tokens.r") as inbox:
            for after in (0, place - 1):
                with pytest.raises(OvertakenError):
                    await theirs.append("r", b"a", prompt="p", after=after)
            await theirs.append("r", b"b", prompt="p", after=place)
            with pytest.raises(OvertakenError):
                await mine.append("r", b"c", prompt="p", after=place)
            assert (await inbox.get()).data == b"b"
            await one.barrier()
            assert inbox.take() is None

    with_two(test)


def test_an_event_added_again_by_its_writer_is_there_once(with_two: WithTwo) -> None:
    async def test(one: Transport, _: Transport) -> None:
        log = await log_of(one, "one")
        assert await log.append("r", b"a", prompt="p", after=0) == await log.append("r", b"a", prompt="p", after=0)
        assert len(await log.read("r")) == 1

    with_two(test)


def test_a_long_answer_is_read_whole_and_in_order(with_two: WithTwo) -> None:
    async def test(one: Transport, _: Transport) -> None:
        log, place = await log_of(one, "one"), 0
        wanted = [str(i).encode() for i in range(1200)]
        for data in wanted:
            place = await log.append("r", data, prompt="p", after=place)
        assert [event.data for event in await log.read("r")] == wanted

    with_two(test)


def test_dead_letters_can_be_read_and_removed_one_by_one(with_two: WithTwo) -> None:
    async def test(one: Transport, two: Transport) -> None:
        queue = await queue_of(one)
        for data in (b"a", b"b", b"c"):
            await queue.put(data)
            [job] = await queue.take(1, timeout=5)
            await job.bury(f"why {data.decode()}")
        other = await queue_of(two)
        first, second, third = await other.letters()
        assert (second.data, second.reason, second.sequence, second.cut) == ("b", "why b", 2, False)
        await other.remove_letter(second.place)
        await other.remove_letter(second.place)
        assert await queue.letters() == [first, third]
        assert (await queue.depth()).dead == 2

    with_two(test)
