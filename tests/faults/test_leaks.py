"""Real processes, a real broker, the real model: a thousand cancelled requests leave nothing behind."""

import asyncio

import orjson
import psutil
import pytest

from engine.contract.control import DecoderHeartbeat, from_json
from engine.contract.prompt import FinalEvent, decode_event
from engine.local.pipeline import LocalPipeline
from engine.transport.durable import open_queue
from engine.transport.nats import NatsTransport
from engine.transport.subjects import Subjects
from tests.faults.asking import Disturbed
from tests.faults.test_decoder import decoder_of
from tests.system.prompts import THIRTY

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]
BATCH = 50


async def cancel_some(transport: NatsTransport, subjects: Subjects, tag: str) -> None:
    """So many requests at once, cancelled at different moments: waiting, reading the prompt, answering."""

    async def one(number: int) -> None:
        request = f"{tag}-{number}"
        async with transport.subscribe(subjects.tokens(request)) as inbox:
            fields = {"id": request, "prompt": THIRTY[number % len(THIRTY)], "max_tokens": 500, "ignore_eos": True}
            await transport.publish(subjects.prompt, orjson.dumps(fields))
            events = 0
            while not isinstance(event := decode_event((await inbox.get()).data), FinalEvent):
                events += 1
                if events == 1 + number % 3:
                    await transport.publish(subjects.cancel, request.encode())
            assert event.finish_reason == "cancelled"

    async with asyncio.TaskGroup() as tasks:
        for number in range(BATCH):
            tasks.create_task(one(number))


async def idle(transport: NatsTransport, subjects: Subjects) -> DecoderHeartbeat:
    """The decoder's heartbeat once it has nothing to do."""
    async with transport.subscribe(subjects.heartbeats) as beats:
        while True:
            message = await beats.get()
            if message.subject.startswith(subjects.decoder_heartbeat("")):
                beat = from_json(DecoderHeartbeat, message.data)
                if (beat.running, beat.waiting, beat.steps_in_flight) == (0, 0, 0):
                    return beat


def held(pipeline: LocalPipeline) -> list[tuple[str, int, int]]:
    """Threads and open files of every process."""
    found: list[tuple[str, int, int]] = []
    for child in (*pipeline.stages, decoder_of(pipeline)):
        process = psutil.Process(child.pid)
        found.append((child.name, process.num_threads(), process.num_fds()))
    return found


@pytest.mark.thorough
def test_a_thousand_cancelled_requests_leave_no_thread_no_file_and_no_block_behind(disturbed: Disturbed) -> None:
    async def main(transport: NatsTransport, subjects: Subjects) -> None:
        await cancel_some(transport, subjects, "first")  # whatever is made once is there now
        await idle(transport, subjects)
        before = held(disturbed.pipeline)
        for number in range(1000 // BATCH):
            await cancel_some(transport, subjects, f"leak-{number}")
        beat = await idle(transport, subjects)
        assert held(disturbed.pipeline) == before
        assert beat.free_blocks == beat.blocks
        depth = await (await open_queue(transport, subjects)).depth()
        assert (depth.pending, depth.working) == (0, 0)

    disturbed.do(main, seconds=500)
