"""Real processes, a real broker, the real model: a stage's key is taken out of the broker in mid-answer."""

import asyncio
import signal
from pathlib import Path

import pytest

from engine.local.pipeline import LocalPipeline, local_pipeline
from engine.transport.nats import connect
from engine.transport.subjects import Subjects
from tests.conftest import Shards
from tests.faults.asking import HASTY, Answers, Disturbed, answers, assert_same
from tests.faults.broker import broker_of

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]


def without(role: str, users: str) -> str:
    """Users and permissions without those of a role."""
    before, mark, rest = users.partition(f"      # {role}\n")
    assert mark
    return before + rest[rest.index("      # ") :]


async def lose_its_key(pipeline: LocalPipeline, users: Path) -> None:
    """The worker ends and names the key; with the key back another one goes on."""
    known, stage = users.read_text(), pipeline.stages[1]
    users.write_text(without("stage-1", known))
    broker_of(pipeline).signal(signal.SIGHUP)
    assert await stage.wait() == 1
    assert "does not know the key" in stage.last_words()
    users.write_text(known)
    broker_of(pipeline).signal(signal.SIGHUP)
    pipeline.stages[1] = await pipeline.start_stage(1, 2)


async def answered(shards: Path, home: Path) -> Answers:
    guarded = local_pipeline(shards, home, print, decoder_options=HASTY, guarded=True)
    async with (
        asyncio.timeout(120),
        guarded as pipeline,
        connect(pipeline.url_for("client"), name="test") as transport,
    ):
        halfway = asyncio.Event()
        asking = asyncio.create_task(answers(transport, Subjects("default", pipeline.slug), "key", halfway))
        await halfway.wait()
        await lose_its_key(pipeline, home / "users.conf")
        return await asking


@pytest.mark.thorough
def test_a_stage_whose_key_is_taken_out_ends_by_name_and_its_successor_goes_on(
    shards: Shards, tmp_path: Path, disturbed: Disturbed
) -> None:
    assert_same(disturbed.calm, asyncio.run(answered(shards(2), tmp_path)))
