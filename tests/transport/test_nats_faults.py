"""What the adapter works around: each trap of nats-py or of TCP that was met, as a test on a real broker."""

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from engine.contract.errors import BrokerError
from engine.local.broker import embedded_broker
from engine.service import loop_factory
from engine.transport import nats_queue
from engine.transport.nats import NatsTransport, connect
from engine.transport.nats_client import SPREAD_SECONDS, RepairedClient, whole
from tests.transport.proxy import Proxy, proxy_to

pytestmark = pytest.mark.broker
WATCH = 0.1  # seconds between echoes
Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
Test = Callable[[NatsTransport, Proxy], Awaitable[None]]


@pytest.fixture(params=[None, loop_factory()], ids=["asyncio", "process"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on each kind of event loop, for half a minute at most."""

    def run_it(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await main()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(bounded())

    return run_it


@pytest.fixture
def behind_proxy(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a test with a transport that reaches its broker through a proxy."""
    monkeypatch.setattr("engine.transport.nats_connect.CLOSE_SECONDS", 0.2)

    def run_test(test: Test, *, watch: float = WATCH) -> None:
        async def main() -> None:
            async with (
                embedded_broker() as url,
                proxy_to(url) as proxy,
                connect(proxy.url, name="test", watch=watch) as transport,
            ):
                await test(transport, proxy)

        run(main)

    return run_test


def client_of(transport: NatsTransport) -> RepairedClient:
    return transport._client  # pyright: ignore[reportPrivateUsage]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  the client's state has no event; this yields, it does not wait
        await asyncio.sleep(0)


async def fill(transport: NatsTransport) -> None:
    while True:
        await transport.publish("nobody.cares", bytes(1 << 20))


def test_a_late_pong_does_not_make_the_client_deaf(behind_proxy: Callable[..., None]) -> None:
    async def test(transport: NatsTransport, proxy: Proxy) -> None:
        client = client_of(transport)
        async with transport.subscribe("a") as inbox:
            proxy.freeze()
            with pytest.raises(Exception, match="timeout"):
                await client.flush(timeout=0.05)  # type: ignore[arg-type]
            proxy.thaw()
            await transport.publish("a", b"x")
            assert (await inbox.get()).data == b"x"
            assert client.stats["reconnects"] == 0

    behind_proxy(test, watch=60)


def test_a_client_whose_reader_died_connects_again(behind_proxy: Callable[..., None]) -> None:
    async def test(transport: NatsTransport, proxy: Proxy) -> None:
        client = client_of(transport)
        async with transport.subscribe("a") as inbox:
            reader: asyncio.Task[None] = client._reading_task  # type: ignore  # the client has no public way to lose it
            reader.cancel()
            async with asyncio.timeout(10):  # the client's own pings need 20 s
                await until(lambda: len(proxy.links) == 2 and transport.connected)
            await transport.publish("a", b"x")
            assert (await inbox.get()).data == b"x"

    behind_proxy(test)


def test_a_frozen_link_with_unsent_bytes_is_replaced(behind_proxy: Callable[..., None]) -> None:
    async def test(transport: NatsTransport, proxy: Proxy) -> None:
        async with transport.subscribe("a") as inbox:
            proxy.freeze()
            with pytest.raises(BrokerError):
                await fill(transport)
            await client_of(transport).online.wait()
            await transport.publish("a", b"x")
            assert (await inbox.get()).data == b"x"

    behind_proxy(test)


def test_what_was_pending_on_a_lost_link_is_not_sent_later(behind_proxy: Callable[..., None]) -> None:
    async def test(transport: NatsTransport, proxy: Proxy) -> None:
        async with transport.subscribe("a") as inbox:
            proxy.freeze()
            with pytest.raises(BrokerError):
                await fill(transport)
            await client_of(transport).online.wait()
            await transport.publish("a", b"new")
            assert (await inbox.get()).data == b"new"
            assert b"nobody.cares" not in proxy.last.sent

    behind_proxy(test)


def test_a_publisher_that_waits_can_be_cancelled(behind_proxy: Callable[..., None]) -> None:
    async def test(transport: NatsTransport, proxy: Proxy) -> None:
        proxy.freeze()
        publisher = asyncio.create_task(fill(transport))
        await until(lambda: client_of(transport).pending_data_size > 8 << 20)
        publisher.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publisher

    behind_proxy(test, watch=60)


def test_leaving_a_frozen_link_with_unsent_bytes_does_not_hang(behind_proxy: Callable[..., None]) -> None:
    async def test(transport: NatsTransport, proxy: Proxy) -> None:
        proxy.freeze()
        publisher = asyncio.create_task(fill(transport))
        await until(lambda: client_of(transport).pending_data_size > 8 << 20)
        publisher.cancel()

    behind_proxy(test, watch=60)


def test_attempts_that_time_out_leave_no_socket_open(
    behind_proxy: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.transport.nats_connect.ATTEMPT_SECONDS", 0.2)
    monkeypatch.setattr("engine.transport.nats_connect.reconnect_pause", lambda: 0.01)

    async def test(_: NatsTransport, proxy: Proxy) -> None:
        proxy.silent = True
        proxy.cut()
        attempts = [await proxy.unanswered.get() for _ in range(3)]
        await asyncio.wait(attempts[:2])

    behind_proxy(test)


def test_a_barrier_leaves_no_subscription_behind(behind_proxy: Callable[..., None]) -> None:
    async def test(transport: NatsTransport, proxy: Proxy) -> None:
        await transport.barrier()
        before = proxy.last.sent.count(b"SUB ")
        for _ in range(5):
            await transport.barrier()
        assert proxy.last.sent.count(b"SUB ") == before

    behind_proxy(test)


def test_small_messages_are_not_held_back(behind_proxy: Callable[..., None]) -> None:
    async def test(transport: NatsTransport, _: Proxy) -> None:
        writer: Any = getattr(client_of(transport)._transport, "_io_writer")  # noqa: B009  # pyright: ignore[reportPrivateUsage]
        own: socket.socket = writer.get_extra_info("socket")
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    behind_proxy(test)


def test_a_message_the_network_doubles_arrives_twice_and_in_order(behind_proxy: Callable[..., None]) -> None:
    async def test(transport: NatsTransport, proxy: Proxy) -> None:
        async with transport.subscribe("a") as inbox:
            proxy.to_client = lambda chunk: chunk + chunk
            await transport.publish("a", b"x")
            assert [(await inbox.get()).data for _ in range(2)] == [b"x", b"x"]

    behind_proxy(test)


def test_who_waits_while_the_broker_is_away_learns_of_it_and_is_served_when_it_is_back(run: Run, tmp_path: Any) -> None:
    """D41: a stage that waits for steps, a client that waits for an answer, a decoder that pulls prompts."""

    async def main() -> None:
        broker = embedded_broker(folder=tmp_path)
        url = await broker.__aenter__()
        async with (
            asyncio.TaskGroup() as tasks,
            connect(url, name="test") as transport,
            transport.subscribe("stage") as steps,
            transport.subscribe("tokens") as tokens,
        ):
            waiting = [tasks.create_task(inbox.get()) for inbox in (steps, tokens)]
            await broker.__aexit__(None, None, None)
            async with asyncio.timeout(5):
                await until(lambda: not transport.connected)
            with pytest.raises(BrokerError, match="not connected"):
                await transport.publish("stage", b"x")
            assert not any(task.done() for task in waiting)
            async with embedded_broker(folder=tmp_path, port=int(url.rsplit(":", 1)[1])):
                await client_of(transport).online.wait()
                for subject in ("stage", "tokens"):
                    await transport.publish(subject, subject.encode())
                assert [(await task).data for task in waiting] == [b"stage", b"tokens"]

    run(main)


def test_the_user_is_interrupted_when_the_broker_ends_the_connection_for_good(run: Run) -> None:
    async def main() -> None:
        async with embedded_broker() as url, proxy_to(url) as proxy:
            with pytest.raises(BrokerError, match="maximum connections"):
                async with connect(proxy.url, name="test"):
                    proxy.inject(b"-ERR 'maximum connections exceeded'\r\n")
                    await asyncio.Event().wait()
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0

    run(main)


def test_an_outage_is_said_at_once_and_subscriptions_survive_it(run: Run, tmp_path: Any) -> None:
    async def main() -> None:
        async with embedded_broker(folder=tmp_path) as url:
            port = int(url.rsplit(":", 1)[1])
        async with asyncio.TaskGroup() as tasks:
            broker = embedded_broker(folder=tmp_path, port=port)
            url = await broker.__aenter__()
            async with connect(url, name="test") as transport, transport.subscribe("a") as inbox:
                queue = await transport.work_queue(stream="Q", subject="q", dead_stream="D", dead_subject="d")
                sequence = (await queue.put(b"survives")).sequence
                await broker.__aexit__(None, None, None)
                await until(lambda: not transport.connected)
                with pytest.raises(BrokerError, match="not connected"):
                    await transport.publish("a", b"x")
                assert await queue.take(1, timeout=0.01) == []
                assert client_of(transport).pending_data_size == 0  # requests would pile up until the broker is back
                taking = tasks.create_task(queue.take(1, timeout=20))
                async with embedded_broker(folder=tmp_path, port=port):
                    [job] = await taking
                    assert (job.sequence, job.data) == (sequence, b"survives")
                    await transport.publish("a", b"x")
                    assert (await inbox.get()).data == b"x"

    run(main)


async def answers_when_cancelled() -> str:
    """As `asyncio.wait_for` of Python 3.11 does when the answer has just come."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "an answer"
    return ""


def test_who_is_told_to_stop_stops_although_an_answer_comes_at_that_moment(run: Run) -> None:
    async def main() -> None:
        asking = asyncio.create_task(whole(answers_when_cancelled()))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    run(main)


def test_a_prompt_is_taken_at_once_although_an_older_request_for_several_is_open(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only prompt of an idle pipeline waited for up to two seconds, now and then."""
    monkeypatch.setattr(nats_queue, "PULL_SECONDS", 60.0)

    async def main() -> None:
        async with embedded_broker() as url, connect(url, name="one") as transport:
            queue = await transport.work_queue(stream="Q", subject="q", dead_stream="D", dead_subject="d")
            assert await queue.take(8, timeout=0.01) == []
            pull: Any = queue._pull  # type: ignore[attr-defined]
            await pull._nc.publish(pull._nms, b'{"batch": 8, "expires": 60000000000}', pull._deliver)
            taking = asyncio.create_task(queue.take(8, timeout=60))
            await transport.barrier()
            await queue.put(b"x")
            async with asyncio.timeout(20):
                [job] = await taking
            assert job.data == b"x"

    run(main)


def test_who_takes_prompts_for_ever_stops_although_one_comes_at_that_moment(run: Run) -> None:
    """A decoder told to stop went on taking prompts and never ended."""

    async def main() -> None:
        async with embedded_broker() as url, connect(url, name="one") as one, connect(url, name="two") as two:
            mine, other = [
                await transport.work_queue(stream="Q", subject="q", dead_stream="D", dead_subject="d")
                for transport in (one, two)
            ]

            async def take_for_ever() -> None:
                while True:
                    for job in await mine.take(2, timeout=20):
                        await job.done()

            for _ in range(40):
                taking = asyncio.create_task(take_for_ever())
                await other.put(b"x")
                if random.random() < 0.5:  # the moment that matters is before or behind a round trip
                    await other.depth()
                taking.cancel()
                done, _ = await asyncio.wait({taking}, timeout=2)
                assert done

    run(main)


def test_clients_that_lose_their_links_in_one_moment_do_not_come_back_in_one(run: Run) -> None:
    """A broker that is back at once, or the next one of a cluster, would have them all at the same time."""

    async def main() -> None:
        async with embedded_broker() as url, proxy_to(url) as proxy, AsyncExitStack() as stack:
            connecting = [connect(proxy.url, name=f"client-{number}") for number in range(20)]
            clients = [client_of(await stack.enter_async_context(one)) for one in connecting]
            for client in clients:
                for server in client._server_pool:  # pyright: ignore[reportPrivateUsage]
                    server.last_attempt = None  # as if it were long ago: else the pauses between attempts spread them
            for link in list(proxy.links):
                link.client.transport.abort()
            loop, back = asyncio.get_running_loop(), list[float]()

            async def until_back(client: RepairedClient) -> None:
                await client.offline.wait()
                await client.online.wait()
                back.append(loop.time())

            await asyncio.gather(*map(until_back, clients))
            assert max(back) - min(back) > SPREAD_SECONDS / 4

    run(main)
