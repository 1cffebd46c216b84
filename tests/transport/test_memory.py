"""What tests may do with the in-process twin that no real broker offers: own its clock, its network and its outages."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from engine.contract.errors import BrokerError
from engine.transport.base import WorkQueue
from engine.transport.durable import ACK_WAIT
from engine.transport.memory import MemoryBroker, MemoryTransport


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await test

    asyncio.run(bounded())


async def queue_on(broker: MemoryBroker) -> WorkQueue:
    transport = MemoryTransport(broker)
    return await transport.work_queue(stream="Q", subject="q.prompt", dead_stream="D", dead_subject="q.dead")


def test_a_job_without_a_sign_of_life_comes_back_after_the_ack_wait() -> None:
    async def test() -> None:
        clock = Clock()
        queue = await queue_on(MemoryBroker(clock=clock))
        await queue.put(b"x")
        await queue.take(1, timeout=0)
        clock.now += ACK_WAIT - 1
        assert await queue.take(1, timeout=0) == []
        clock.now += 1
        [again] = await queue.take(1, timeout=1)
        assert again.deliveries == 2

    run(test())


def test_a_job_that_is_kept_stays_where_it_is() -> None:
    async def test() -> None:
        clock = Clock()
        queue = await queue_on(MemoryBroker(clock=clock))
        await queue.put(b"x")
        [job] = await queue.take(1, timeout=1)
        clock.now += ACK_WAIT - 1
        await job.keep()
        clock.now += ACK_WAIT - 1
        assert await queue.take(1, timeout=0) == []

    run(test())


def test_a_full_queue_refuses_and_says_so() -> None:
    async def test() -> None:
        queue = await queue_on(MemoryBroker(max_prompts=1))
        await queue.put(b"x")
        with pytest.raises(BrokerError, match="full"):
            await queue.put(b"y")

    run(test())


def test_a_plain_publish_to_a_full_queue_is_lost_without_an_error() -> None:
    async def test() -> None:
        broker = MemoryBroker(max_prompts=1)
        queue, transport = await queue_on(broker), MemoryTransport(broker)
        await transport.publish("q.prompt", b"x")
        await transport.publish("q.prompt", b"y")
        assert (await queue.depth()).pending == 1

    run(test())


@pytest.mark.parametrize("copies", [0, 2])
def test_the_network_can_lose_or_double_a_message(copies: int) -> None:
    async def test() -> None:
        broker = MemoryBroker(intercept=lambda subject, data: [data] * (copies if subject == "a" else 1))
        transport = MemoryTransport(broker)
        async with transport.subscribe("a") as inbox:
            await transport.publish("a", b"x")
            assert inbox.waiting == copies

    run(test())


def test_an_outage_stops_everything_and_subscriptions_survive_it() -> None:
    async def test() -> None:
        broker = MemoryBroker()
        here, there = MemoryTransport(broker), MemoryTransport(broker)
        async with here.subscribe("a") as inbox:
            here.connected = False
            await there.publish("a", b"lost")
            with pytest.raises(BrokerError, match="not connected"):
                await here.publish("a", b"x")
            here.connected = True
            await there.publish("a", b"found")
            assert (await inbox.get()).data == b"found"

    run(test())
