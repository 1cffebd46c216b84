"""The durable queue and the lease where JetStream or nats-py need care."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from nats.js import JetStreamContext
from nats.js.errors import APIError

from engine.contract.errors import BrokerError, LeaseLostError, OverloadedError
from engine.local import broker as broker_module
from engine.local.broker import embedded_broker
from engine.transport.base import WorkQueue
from engine.transport.nats import NatsTransport, connect
from engine.transport.nats_jetstream import NO_ROOM
from engine.transport.nats_queue import _refusal  # pyright: ignore[reportPrivateUsage]

pytestmark = pytest.mark.broker


def with_broker(test: Callable[[NatsTransport, Any], Awaitable[None]]) -> None:
    """Runs a test with a transport and nats-py's own JetStream context on the same connection."""

    async def main() -> None:
        async with asyncio.timeout(30), embedded_broker() as url, connect(url, name="test") as transport:
            await test(transport, JetStreamContext(transport._client))  # pyright: ignore[reportPrivateUsage]

    asyncio.run(main())


async def queue_of(transport: NatsTransport) -> WorkQueue:
    return await transport.work_queue(stream="Q", subject="q.prompt", dead_stream="D", dead_subject="q.dead")


def test_a_prompt_that_fits_only_without_its_header_is_refused_and_the_link_stays() -> None:
    async def test(transport: NatsTransport, _: Any) -> None:
        queue = await queue_of(transport)
        with pytest.raises(BrokerError, match="max_payload"):
            await queue.put(bytes(transport.max_payload), message_id="m")
        assert transport._client.stats["reconnects"] == 0  # pyright: ignore[reportPrivateUsage]
        await transport.barrier()

    with_broker(test)


def test_a_full_queue_refuses_and_says_so() -> None:
    async def test(transport: NatsTransport, js: Any) -> None:
        await js.add_stream(name="Q", subjects=["q.prompt"], retention="workqueue", discard="new", max_msgs=1)
        queue = await queue_of(transport)
        await queue.put(b"x")
        with pytest.raises(OverloadedError, match="the prompt queue is full") as caught:
            await queue.put(b"y")
        assert (caught.value.code, caught.value.retry_after) == ("overloaded", 5)

    with_broker(test)


@pytest.mark.parametrize("code", NO_ROOM)
def test_a_store_without_room_refuses_with_a_code_and_says_when_to_come_again(code: int) -> None:
    refused = _refusal(APIError(code=503, err_code=code, description="insufficient resources"))
    assert isinstance(refused, OverloadedError)
    assert "max_file" in str(refused)
    assert refused.retry_after == 5


def test_a_store_full_of_prompts_still_has_room_for_the_events_that_answer_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else nothing could ever end: a prompt goes when its last event is stored."""
    for name in ("nats_queue.PROMPT_BYTES", "nats_queue.DEAD_BYTES", "nats_log.LOG_BYTES"):
        monkeypatch.setattr(f"engine.transport.{name}", 1 << 20)
    small = broker_module._CONFIG.replace("max_file: 1GB", "max_file: 3MiB")  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(broker_module, "_CONFIG", small)

    async def test(transport: NatsTransport, _: Any) -> None:
        queue = await transport.work_queue(
            stream="Q", subject="q.prompt", dead_stream="D", dead_subject="q.dead", use="take"
        )
        events = await transport.event_log(stream="E", subject="e", shown="shown", writer="w")
        with pytest.raises(OverloadedError, match="the prompt queue is full"):
            while True:
                await queue.put(bytes(50_000))
        for number in range(200):
            await events.append(f"r{number}", bytes(10_000), prompt="p", after=0)
        [job] = await queue.take(1, timeout=2.0)
        await job.bury("why")
        [job] = await queue.take(1, timeout=2.0)
        await job.done()
        while True:
            try:
                await queue.put(bytes(50_000))
            except OverloadedError:
                continue  # an acknowledgement is not answered
            return

    with_broker(test)


@pytest.mark.parametrize(
    ("settings", "differs"),
    [
        ({"subjects": ["q.prompt"], "retention": "limits"}, "has retention limits, not workqueue"),
        ({"subjects": ["q.other"], "retention": "workqueue"}, "has subjects"),
    ],
)
def test_a_stream_that_does_something_else_is_left_alone(settings: dict[str, Any], differs: str) -> None:
    async def test(transport: NatsTransport, js: Any) -> None:
        await js.add_stream(name="Q", **settings)
        with pytest.raises(BrokerError, match=differs):
            await queue_of(transport)

    with_broker(test)


def test_a_queue_that_was_removed_is_named() -> None:
    async def test(transport: NatsTransport, js: Any) -> None:
        queue = await queue_of(transport)
        await js.delete_stream("Q")
        with pytest.raises(BrokerError, match="cannot read the prompt queue"):
            await queue.depth()
        with pytest.raises(BrokerError, match="cannot take prompts"):
            await queue.take(1, timeout=0.2)

    with_broker(test)


@pytest.mark.parametrize("marker", ["expired", "deleted"])
def test_a_lease_that_expired_or_was_deleted_is_none_and_can_be_taken(marker: str) -> None:
    async def test(transport: NatsTransport, js: Any) -> None:
        lease = await transport.lease(bucket="L", key="k")
        first = await lease.write(b"me", after=0)
        if marker == "expired":  # what the broker leaves behind with limit_marker_ttl
            await js.publish("$KV.L.k", b"", headers={"Nats-Marker-Reason": "MaxAge"})
        else:
            await (await js.key_value("L")).delete("k")
        assert await lease.read() is None
        second = await lease.write(b"them", after=0)
        assert second > first
        with pytest.raises(LeaseLostError):
            await lease.write(b"me", after=first)

    with_broker(test)
