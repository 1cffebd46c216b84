"""Real processes, a real broker, the real model: a stage is killed or stopped in the middle of four answers."""

import signal

import pytest

from engine.local.pipeline import LocalPipeline
from tests.faults.asking import Disturbed
from tests.faults.broker import logged, mark
from tests.faults.test_decoder import decoder_of

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]


@pytest.mark.parametrize("index", [0, 1])
def test_a_stage_killed_in_mid_answer_and_started_again_changes_no_text(disturbed: Disturbed, index: int) -> None:
    async def kill_and_start_again(pipeline: LocalPipeline) -> None:
        pipeline.stages[index].kill()
        await pipeline.stages[index].wait()
        pipeline.stages[index] = await pipeline.start_stage(index, len(pipeline.stages))

    disturbed.by(kill_and_start_again)


def test_a_stage_told_to_stop_in_mid_answer_exits_0_and_its_successor_goes_on(disturbed: Disturbed) -> None:
    async def replace(pipeline: LocalPipeline) -> None:
        pipeline.stages[1].signal(signal.SIGTERM)
        assert await pipeline.stages[1].wait() == 0
        pipeline.stages[1] = await pipeline.start_stage(1, len(pipeline.stages))

    disturbed.by(replace)


def test_a_stage_stopped_for_longer_than_a_step_may_take_costs_no_text(disturbed: Disturbed) -> None:
    async def stop_and_go_on(pipeline: LocalPipeline) -> None:
        decoder = decoder_of(pipeline)
        before = mark(decoder)
        pipeline.stages[1].signal(signal.SIGSTOP)
        await logged(decoder, "lost: step", before)
        pipeline.stages[1].signal(signal.SIGCONT)

    disturbed.by(stop_and_go_on)
