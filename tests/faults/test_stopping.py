"""Real processes, a real broker, the real model: everything is told to stop in mid-answer, in every order."""

import asyncio
import signal
from itertools import permutations
from pathlib import Path

import orjson
import pytest

from engine.local.pipeline import LocalPipeline, local_pipeline
from engine.transport.nats import connect
from engine.transport.subjects import Subjects
from tests.conftest import Shards
from tests.faults.asking import BEFORE
from tests.faults.broker import broker_of
from tests.faults.test_decoder import decoder_of
from tests.system.prompts import PROMPTS

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]
GRACE = ("--grace", "2")  # seconds
END_SECONDS = 12.0  # the grace, a broker that is asked in vain (5 s), a link that is closed
CHOSEN = ("broker", "decoder", "stages")


async def answering(pipeline: LocalPipeline) -> None:
    """Four long answers have begun."""
    subjects = Subjects("default", pipeline.slug)
    async with connect(pipeline.url, name="test") as transport, transport.subscribe(subjects.tokens("*")) as inbox:
        for prompt in PROMPTS[:4]:
            fields = {"prompt": prompt, "max_tokens": 500, "ignore_eos": True}
            await transport.publish(subjects.prompt, orjson.dumps(fields))
        for _ in range(4 * BEFORE):
            await inbox.get()


async def stop(pipeline: LocalPipeline, what: str) -> None:
    """Every process of that kind ends by itself, in time, with exit code 0."""
    children = {"broker": [broker_of(pipeline)], "stages": pipeline.stages, "decoder": [decoder_of(pipeline)]}[what]
    for child in children:
        child.signal(signal.SIGTERM)
    async with asyncio.timeout(END_SECONDS):
        codes = {child.name: await child.wait() for child in children}
    assert not any(codes.values()), codes


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(order, marks=[] if order == CHOSEN else [pytest.mark.thorough])
        for order in permutations(("broker", "decoder", "stages"))
    ],
    ids="-".join,
)
def test_whatever_is_stopped_first_every_process_ends_in_time(
    shards: Shards, tmp_path: Path, order: tuple[str, ...]
) -> None:
    async def main() -> None:
        async with local_pipeline(shards(2), tmp_path, print, stage_options=GRACE, decoder_options=GRACE) as pipeline:
            await answering(pipeline)
            for what in order:
                await stop(pipeline, what)

    asyncio.run(main())


@pytest.mark.thorough
def test_everything_told_to_stop_at_once_ends_in_time(shards: Shards, tmp_path: Path) -> None:
    async def main() -> None:
        async with local_pipeline(shards(2), tmp_path, print, stage_options=GRACE, decoder_options=GRACE) as pipeline:
            await answering(pipeline)
            await asyncio.gather(*(stop(pipeline, what) for what in CHOSEN))

    asyncio.run(main())
