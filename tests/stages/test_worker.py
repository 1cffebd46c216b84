import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.contract.control import Open, Opened, StageHeartbeat, from_json, to_json
from engine.contract.errors import DeviceError, ErrorCode, ShardlineError
from engine.contract.messages import Frame, Step, StepFailed, StepResult
from engine.service import first_error
from engine.transport.base import Inbox
from engine.transport.memory import MemoryBroker, MemoryTransport
from engine.wire.frame import decode, encode
from stages.heartbeat import Loaded
from stages.identity import Identity
from stages.worker import StageWorker
from tests.stages.fakes import DECODER, SUBJECTS, AddingShard, broken_device, identity, opening, step

HEARTBEAT = 0.05  # seconds


@dataclass
class Bench:
    """A decoder's place beside workers."""

    broker: MemoryBroker
    transport: MemoryTransport
    done: Inbox
    heartbeats: Inbox
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self, who: Identity, epoch: int = 1, then: Identity | None = None, **changes: Any) -> Opened:
        return await self.ask(who, to_json(opening(epoch, then=then, **changes)))

    async def ask(self, who: Identity, data: bytes) -> Opened:
        subject = SUBJECTS.stage_control(who.stage, who.incarnation)
        return from_json(Opened, (await self.transport.request(subject, data, timeout=5)).data)

    async def send(self, who: Identity, *messages: Step | bytes) -> None:
        for message in messages:
            data = message if isinstance(message, bytes) else encode(message)
            subject = SUBJECTS.stage(who.stage, who.incarnation)
            await self.transport.publish(subject, data, reply=SUBJECTS.done(DECODER, 1))

    async def result(self) -> Frame:
        async with asyncio.timeout(5):
            return decode((await self.done.get()).data)

    async def failure(self) -> ErrorCode:
        frame = await self.result()
        assert isinstance(frame, StepFailed)
        return frame.code

    async def heartbeat(self, wanted: Callable[[StageHeartbeat], bool]) -> StageHeartbeat:
        async with asyncio.timeout(5):
            while not wanted(beat := from_json(StageHeartbeat, (await self.heartbeats.get()).data)):
                pass
        return beat


@asynccontextmanager
async def bench() -> AsyncGenerator[Bench]:
    broker = MemoryBroker()
    transport = MemoryTransport(broker)
    async with (
        transport.subscribe(SUBJECTS.done(DECODER, "*")) as done,
        transport.subscribe(f"{SUBJECTS.root}.heartbeat.stage.*") as heartbeats,
    ):
        yield Bench(broker, transport, done, heartbeats)


@asynccontextmanager
async def working(at: Bench, who: Identity, shard: AddingShard) -> AsyncGenerator[asyncio.Task[None]]:
    """A worker that takes work; stopped and waited for at the end."""
    ready = asyncio.Event()
    task = asyncio.create_task(
        worker(at, who, lambda: Loaded(shard), announce=lambda _: ready.set()).run(at.stop), name=f"stage {who.stage}"
    )
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        waiting.cancel()
        task.result()
    yield task
    at.stop.set()
    await task


def worker(
    at: Bench, who: Identity, load: Callable[[], Loaded], *, announce: Callable[[str], None] = lambda _: None
) -> StageWorker:
    return StageWorker(
        MemoryTransport(at.broker), SUBJECTS, who, load, announce=announce, listen=0.0, heartbeat=HEARTBEAT
    )


def run(scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with bench() as at, asyncio.timeout(20):
            await scenario(at)

    asyncio.run(main())


ONLY = identity()
FIRST, LAST = identity(0, 2, 7), identity(1, 2, 9)


def test_a_step_passes_two_stages_and_comes_back_as_token_ids() -> None:
    async def scenario(at: Bench) -> None:
        async with working(at, FIRST, AddingShard()), working(at, LAST, AddingShard(last=True)):
            await at.open(LAST)
            await at.open(FIRST, then=LAST)
            await at.send(FIRST, step(0, tokens=(5, 6)))
            frame = await at.result()
            assert isinstance(frame, StepResult)
            assert (frame.tokens.tolist(), frame.incarnation) == ([8], 9)

    run(scenario)


def test_steps_are_computed_in_arrival_order_in_one_thread_that_is_not_the_loops() -> None:
    async def scenario(at: Bench) -> None:
        shard = AddingShard(last=True)
        async with working(at, ONLY, shard):
            await at.open(ONLY)
            await at.send(ONLY, *(step(n, tokens=(n, n)) for n in range(10)))
            numbers = [(await at.result()).number for _ in range(10)]
        assert numbers == list(range(10))
        assert [seen[0] for seen in shard.seen] == [n + 1.0 for n in range(10)]
        assert shard.threads == {"inference_0"}

    run(scenario)


def test_a_gap_is_reported_and_nothing_after_it_computed() -> None:
    async def scenario(at: Bench) -> None:
        shard = AddingShard(last=True)
        async with working(at, ONLY, shard):
            await at.open(ONLY)
            await at.send(ONLY, step(0), step(2), step(3))
            await at.result()
            assert [await at.failure(), await at.failure()] == [ErrorCode.STEP_GAP] * 2
        assert len(shard.seen) == 1

    run(scenario)


@pytest.mark.parametrize("order", [(1, 0), (0, 2, 1), (0, 2, 1, 3)])
def test_a_step_before_its_predecessor_is_refused_and_so_is_all_that_follows(order: tuple[int, ...]) -> None:
    """D27: nothing is put back into order, nothing is computed on a cache that lacks a step."""
    good = [number for at, number in enumerate(order) if list(order[: at + 1]) == list(range(at + 1))]

    async def scenario(at: Bench) -> None:
        shard = AddingShard(last=True)
        async with working(at, ONLY, shard):
            await at.open(ONLY)
            await at.send(ONLY, *map(step, order))
            frames = [await at.result() for _ in order]
        assert [frame.number for frame in frames] == list(order)
        assert [isinstance(frame, StepFailed) and frame.code for frame in frames] == [
            number not in good and ErrorCode.STEP_GAP for number in order
        ]
        assert len(shard.seen) == len(good)

    run(scenario)


def test_a_doubled_frame_is_computed_once() -> None:
    async def scenario(at: Bench) -> None:
        shard = AddingShard(last=True)
        async with working(at, ONLY, shard):
            await at.open(ONLY)
            await at.send(ONLY, step(0), step(0), step(1))
            first, code, second = await at.result(), await at.failure(), await at.result()
        assert (first.number, code, second.number) == (0, ErrorCode.STEP_REPEATED, 1)
        assert len(shard.seen) == 2

    run(scenario)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (step(0, incarnation=8), ErrorCode.FOREIGN_INCARNATION),
        (step(0, epoch=2), ErrorCode.UNKNOWN_EPOCH),
        (step(0, start=-1), ErrorCode.INVALID_ROWS),
        (encode(step(0))[:4] + b"\x63" + encode(step(0))[5:], ErrorCode.WRONG_VERSION),
    ],
)
def test_what_must_not_be_computed_is_reported_to_the_decoder(bad: Step | bytes, code: ErrorCode) -> None:
    async def scenario(at: Bench) -> None:
        async with working(at, ONLY, AddingShard(last=True)):
            await at.open(ONLY)
            await at.send(ONLY, bad)
            assert await at.failure() == code

    run(scenario)


def test_malformed_and_stale_frames_are_dropped_and_the_epoch_goes_on() -> None:
    async def scenario(at: Bench) -> None:
        async with working(at, ONLY, AddingShard(last=True)):
            await at.open(ONLY, 1)
            await at.open(ONLY, 2)
            await at.send(ONLY, b"", b"SHRD", encode(step(0, epoch=2))[:-1], step(0, epoch=1), step(0, epoch=2))
            frame = await at.result()
            assert isinstance(frame, StepResult) and frame.epoch == 2
            assert (await at.heartbeat(lambda h: h.steps == 1)).refused == 4

    run(scenario)


def test_a_failing_device_is_reported_and_a_new_epoch_works_again() -> None:
    async def scenario(at: Bench) -> None:
        shard = AddingShard(last=True)
        shard.fail_next = broken_device()
        async with working(at, ONLY, shard):
            await at.open(ONLY, 1)
            await at.send(ONLY, step(0), step(1))
            assert [await at.failure(), await at.failure()] == [ErrorCode.DEVICE_FAILED, ErrorCode.STEP_GAP]
            await at.open(ONLY, 2)
            await at.send(ONLY, step(0, epoch=2))
            assert isinstance(await at.result(), StepResult)

    run(scenario)


def test_a_missing_next_stage_is_reported_once_per_epoch() -> None:
    async def scenario(at: Bench) -> None:
        async with working(at, FIRST, AddingShard()):
            for epoch in (1, 2):
                await at.open(FIRST, epoch, then=LAST)
                await at.send(FIRST, step(0, epoch=epoch), step(1, epoch=epoch))
                frame = await at.result()
                assert isinstance(frame, StepFailed)
                assert (frame.code, frame.epoch) == (ErrorCode.NEXT_STAGE_GONE, epoch)
                await at.heartbeat(lambda h, steps=2 * epoch: h.steps == steps)  # the next epoch would drop the second
            assert at.done.take() is None

    run(scenario)


def test_only_increasing_epochs_are_adopted() -> None:
    async def scenario(at: Bench) -> None:
        async with working(at, ONLY, AddingShard(last=True)):
            answers = [await at.open(ONLY, epoch) for epoch in (3, 3, 2, 4)]
        assert [a.code for a in answers] == ["", ErrorCode.STALE_EPOCH, ErrorCode.STALE_EPOCH, ""]
        assert [a.epoch for a in answers] == [3, 3, 3, 4]

    run(scenario)


@pytest.mark.parametrize("data", [b"[]", b'{"epoch": 1}', to_json(opening()).replace(b":1,", b':"1",', 1)])
def test_an_open_message_that_is_not_one_is_answered_with_a_code(data: bytes) -> None:
    async def scenario(at: Bench) -> None:
        async with working(at, ONLY, AddingShard(last=True)):
            assert (await at.ask(ONLY, data)).code == ErrorCode.MALFORMED_FRAME

    run(scenario)


def test_another_protocol_is_refused_by_code() -> None:
    async def scenario(at: Bench) -> None:
        async with working(at, ONLY, AddingShard(last=True)):
            assert (await at.open(ONLY, protocol=99)).code == ErrorCode.WRONG_VERSION

    run(scenario)


def test_heartbeats_tell_loading_ready_serving_and_draining() -> None:
    async def scenario(at: Bench) -> None:
        async with working(at, ONLY, AddingShard(last=True)):
            loading = await at.heartbeat(lambda h: h.state == "loading")
            ready = await at.heartbeat(lambda h: h.state == "ready")
            await at.open(ONLY)
            serving = await at.heartbeat(lambda h: h.state == "serving")
            at.stop.set()
            await at.heartbeat(lambda h: h.state == "draining")
        assert (loading.blocks, ready.blocks, ready.block_size) == (0, 16, 8)
        assert (ready.epoch, serving.epoch) == (0, 1)

    run(scenario)


def test_steps_that_wait_show_in_the_heartbeat() -> None:
    async def scenario(at: Bench) -> None:
        shard = AddingShard(last=True)
        async with working(at, ONLY, shard):
            await at.open(ONLY)
            shard.gate.clear()
            await at.send(ONLY, *(step(n) for n in range(5)))
            try:
                beat = await at.heartbeat(lambda h: h.waiting == 4)
            finally:
                shard.gate.set()
        assert beat.oldest_ms > 0

    run(scenario)


def test_stopping_finishes_the_steps_that_have_arrived_and_says_goodbye() -> None:
    async def scenario(at: Bench) -> None:
        shard = AddingShard(last=True)
        async with working(at, ONLY, shard) as task:
            await at.open(ONLY)
            shard.gate.clear()
            await at.send(ONLY, *(step(n) for n in range(5)))
            await asyncio.to_thread(shard.computing.wait, 5)
            at.stop.set()
            shard.gate.set()
            await task
            numbers = [(await at.result()).number for _ in range(5)]
            goodbye = await at.failure()
        assert (numbers, goodbye) == (list(range(5)), ErrorCode.UNAVAILABLE)
        assert shard.closed

    run(scenario)


def test_a_draining_worker_opens_no_epoch() -> None:
    async def scenario(at: Bench) -> None:
        shard = AddingShard(last=True)
        async with working(at, ONLY, shard):
            await at.open(ONLY)
            shard.gate.clear()
            await at.send(ONLY, step(0))
            at.stop.set()
            await at.heartbeat(lambda h: h.state == "draining")
            try:
                assert (await at.open(ONLY, 2)).code == ErrorCode.UNAVAILABLE
            finally:
                shard.gate.set()

    run(scenario)


def test_after_stopping_the_broker_says_that_nobody_is_there() -> None:
    async def scenario(at: Bench) -> None:
        async with working(at, ONLY, AddingShard(last=True)) as task:
            at.stop.set()
            await task
        await at.send(ONLY, step(0))
        assert (await at.done.get()).no_responder

    run(scenario)


def test_a_worker_that_is_told_to_stop_while_loading_ends() -> None:
    async def scenario(at: Bench) -> None:
        shard = AddingShard()
        shard.gate.clear()

        def load() -> Loaded:
            shard.gate.wait(10)
            return Loaded(shard)

        task = asyncio.create_task(worker(at, ONLY, load).run(at.stop))
        await at.heartbeat(lambda h: h.state == "loading")
        at.stop.set()
        await task
        shard.gate.set()

    run(scenario)


def test_a_shard_that_does_not_load_ends_the_worker_with_that_error() -> None:
    def load() -> Loaded:
        raise DeviceError("cannot load stage 0 on CPU: out of memory")

    async def scenario(at: Bench) -> None:
        assert "out of memory" in str(await ended(worker(at, ONLY, load), at))

    run(scenario)


async def ended(failing: StageWorker, at: Bench) -> ShardlineError:
    with pytest.raises(ExceptionGroup) as caught:
        await failing.run(at.stop)
    error = first_error(caught.value)
    assert error is not None
    return error


def test_a_worker_whose_device_computes_nothing_any_more_tells_the_decoder_and_ends() -> None:
    def check() -> None:
        raise broken_device()

    async def scenario(at: Bench) -> None:
        shard, ready = AddingShard(last=True), asyncio.Event()
        shard.fail_next = broken_device()
        sick = worker(at, ONLY, lambda: Loaded(shard, check=check), announce=lambda _: ready.set())
        ending = asyncio.create_task(ended(sick, at))
        await ready.wait()
        await at.open(ONLY, 1)
        await at.send(ONLY, step(0))
        assert await at.failure() == ErrorCode.DEVICE_FAILED
        assert (await at.open(ONLY, 2)).code == ErrorCode.DEVICE_FAILED
        assert "stage 0 computes nothing any more: the device failed" in str(await ending)

    run(scenario)


def test_a_second_worker_for_a_stage_ends_and_names_the_first() -> None:
    async def scenario(at: Bench) -> None:
        async with working(at, identity(host="first-host", pid=4711), AddingShard(last=True)) as first:
            second = StageWorker(
                MemoryTransport(at.broker),
                SUBJECTS,
                identity(incarnation=8),
                lambda: Loaded(AddingShard(last=True)),
                announce=lambda _: pytest.fail("took work"),
                listen=3.0,
            )
            error = await ended(second, at)
            assert "first-host" in str(error) and "4711" in str(error)
            assert not first.done()

    run(scenario)


def test_a_heartbeat_that_is_nonsense_disturbs_nobody() -> None:
    async def scenario(at: Bench) -> None:
        async with working(at, ONLY, AddingShard(last=True)):
            beat = to_json(await at.heartbeat(lambda h: h.state == "ready"))
            for data in (b"", b"{}", beat.replace(b'"incarnation":7', b'"incarnation":"x"')):
                await at.transport.publish(SUBJECTS.stage_heartbeat(0), data)
            assert (await at.open(ONLY)).code == ""

    run(scenario)


def test_a_step_larger_than_the_broker_takes_is_reported() -> None:
    async def scenario(at: Bench) -> None:
        async with working(at, FIRST, AddingShard()), working(at, LAST, AddingShard(last=True)):
            await at.open(LAST)
            await at.open(FIRST, then=LAST)
            at.broker.max_payload = 1000
            await at.send(FIRST, step(0, tokens=(1,) * 100))
            assert await at.failure() == ErrorCode.INTERNAL

    run(scenario)


def test_open_messages_round_trip() -> None:
    assert from_json(Open, to_json(opening(3))) == opening(3)
