"""Real processes, a real broker, the real model: the decoder is lost in the middle of four answers."""

import asyncio
import signal

import pytest

from engine.local.pipeline import LocalPipeline
from engine.local.processes import Child
from tests.faults.asking import HASTY, Disturbed

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]


def decoder_of(pipeline: LocalPipeline) -> Child:
    assert pipeline.decoder is not None
    return pipeline.decoder


async def start_another(pipeline: LocalPipeline) -> None:
    pipeline.decoder = await pipeline.start_decoder(*HASTY)
    await pipeline.decoder.wait_for_line("ready")


def test_a_decoder_killed_in_mid_answer_and_started_again_changes_no_text(disturbed: Disturbed) -> None:
    async def kill_and_start_again(pipeline: LocalPipeline) -> None:
        decoder_of(pipeline).kill()
        await decoder_of(pipeline).wait()
        await start_another(pipeline)

    disturbed.by(kill_and_start_again)


def test_a_decoder_that_stood_by_goes_on_for_one_that_is_killed(disturbed: Disturbed) -> None:
    async def kill_beside_a_standby(pipeline: LocalPipeline) -> None:
        lost, pipeline.decoder = decoder_of(pipeline), await pipeline.start_decoder(*HASTY)
        lost.kill()
        await lost.wait()
        await pipeline.decoder.wait_for_line("ready")

    disturbed.by(kill_beside_a_standby)


def test_a_decoder_that_hung_and_comes_back_is_not_heard_any_more(disturbed: Disturbed) -> None:
    async def replace_a_stopped_one(pipeline: LocalPipeline) -> None:
        stale = decoder_of(pipeline)
        stale.signal(signal.SIGSTOP)
        await start_another(pipeline)
        stale.signal(signal.SIGCONT)
        async with asyncio.timeout(60):
            assert await stale.wait() == 1  # another decoder has the lease

    disturbed.by(replace_a_stopped_one)


def test_a_decoder_told_to_stop_hands_what_it_cannot_finish_to_the_next(disturbed: Disturbed) -> None:
    async def hand_over(pipeline: LocalPipeline) -> None:
        leaving = decoder_of(pipeline)
        leaving.signal(signal.SIGTERM)
        assert await leaving.wait() == 0
        await start_another(pipeline)

    disturbed.by(hand_over)
