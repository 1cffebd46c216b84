"""Real processes, a real broker, the real model: too much, too slow, not listening."""

import asyncio
import signal

import nats
import pytest
from nats.js.api import StreamConfig

from engine.client.client import Client
from engine.contract.control import StageHeartbeat, from_json
from engine.contract.errors import OverloadedError
from engine.contract.prompt import FinalEvent
from engine.local.pipeline import LocalPipeline
from engine.transport.base import Inbox, QueueDepth
from engine.transport.durable import MAX_PROMPTS, open_queue
from engine.transport.nats import NatsTransport, connect
from engine.transport.subjects import Subjects
from tests.faults.asking import TOKENS, Answers, Disturbed, assert_same, by_client
from tests.faults.broker import broker_of
from tests.faults.test_decoder import decoder_of
from tests.system.prompts import PROMPTS
from tests.transport.proxy import Proxy, proxy_to

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]
CROWD = 40
IN_A_STAGE = 8  # steps that may wait before one: a few in flight, whatever the number of requests


def test_a_client_that_reads_nothing_for_long_loses_nothing_and_delays_nobody(disturbed: Disturbed) -> None:
    cables: list[Proxy] = []

    async def ask(transport: NatsTransport, subjects: Subjects, tag: str, halfway: asyncio.Event) -> Answers:
        async with proxy_to(disturbed.url) as cable, connect(cable.url, name="slow", watch=600) as slow:
            cables.append(cable)
            theirs = asyncio.create_task(by_client(slow, subjects, f"{tag}-slow", halfway))
            await halfway.wait()
            cable.freeze()
            ours = await by_client(transport, subjects, f"{tag}-quick", asyncio.Event())
            assert not theirs.done()
            assert_same(disturbed.calm, ours)
            cable.thaw()
            return await theirs

    async def nothing(_: LocalPipeline) -> None:
        pass

    disturbed.by(nothing, ask)


def test_a_full_queue_refuses_at_once_and_takes_prompts_again_when_there_is_room(disturbed: Disturbed) -> None:
    async def fill(transport: NatsTransport, subjects: Subjects) -> list[FinalEvent]:
        queue, decoder = await open_queue(transport, subjects), decoder_of(disturbed.pipeline)
        await limit_prompts(disturbed.url, subjects, 2)
        decoder.signal(signal.SIGSTOP)
        client, asked = Client(transport, subjects), list[asyncio.Task[FinalEvent]]()
        for number in range(2):
            asked.append(asyncio.create_task(client.complete(id=f"fits-{number}", prompt=PROMPTS[0], max_tokens=4)))
            while sum(at_hand(await queue.depth())) <= number:  # noqa: ASYNC110  the queue tells nobody
                await asyncio.sleep(0.01)
        async with asyncio.timeout(1):
            with pytest.raises(OverloadedError) as refused:
                await client.complete(prompt=PROMPTS[0], max_tokens=4)
        assert refused.value.retry_after > 0
        decoder.signal(signal.SIGCONT)
        told = [await one for one in asked]
        told.append(await client.complete(prompt=PROMPTS[0], max_tokens=4))
        await limit_prompts(disturbed.url, subjects, MAX_PROMPTS)
        return told

    assert len({final.text for final in disturbed.do(fill)}) == 1


def at_hand(depth: QueueDepth) -> tuple[int, int]:
    return depth.pending, depth.working


async def limit_prompts(url: str, subjects: Subjects, limit: int) -> None:
    """As an operator may do at any time."""
    client = await nats.connect(url)
    js = client.jetstream()
    config: StreamConfig = (await js.stream_info(subjects.prompt_stream)).config
    config.max_msgs = limit
    await js.update_stream(config)
    await client.close()


@pytest.mark.thorough
def test_ten_times_the_load_on_a_slow_stage_waits_in_the_queue_and_not_before_the_stage(disturbed: Disturbed) -> None:
    async def crowd(transport: NatsTransport, subjects: Subjects) -> int:
        async with transport.subscribe(subjects.stage_heartbeat(1)) as beats, asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(most_waiting(beats))
            slowing = tasks.create_task(slow_down(disturbed.pipeline))
            asked = [tasks.create_task(one(transport, subjects, number)) for number in range(CROWD)]
            for number, asking in enumerate(asked):
                assert (await asking).text == disturbed.calm[number % 4][-1].text
            slowing.cancel()
            watching.cancel()
        disturbed.pipeline.stages[1].signal(signal.SIGCONT)
        return MOST[-1]

    assert disturbed.do(crowd) <= IN_A_STAGE
    assert "Slow Consumer" not in broker_of(disturbed.pipeline).log.read_text()


MOST = [0]


async def most_waiting(beats: Inbox) -> None:
    while True:
        MOST.append(max(MOST[-1], from_json(StageHeartbeat, (await beats.get()).data).waiting))


async def slow_down(pipeline: LocalPipeline) -> None:
    """A stage that gets a third of the time of others."""
    while True:
        pipeline.stages[1].signal(signal.SIGSTOP)
        await asyncio.sleep(0.2)
        pipeline.stages[1].signal(signal.SIGCONT)
        await asyncio.sleep(0.1)


async def one(transport: NatsTransport, subjects: Subjects, number: int) -> FinalEvent:
    fields = {"prompt": PROMPTS[number % 4], "max_tokens": TOKENS, "ignore_eos": True}
    return await Client(transport, subjects).complete(id=f"crowd-{number}", **fields)
