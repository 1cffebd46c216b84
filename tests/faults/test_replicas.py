"""Real processes, a real broker, the real model: two pipelines on one queue, and one of them is lost in mid-answer."""

import pytest

from engine.local.pipeline import LocalPipeline
from tests.faults.asking import HASTY, Disturbed

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]
TWO = ("--pipeline", "two")


def test_the_answers_of_a_pipeline_that_dies_go_on_in_the_other_one(disturbed: Disturbed) -> None:
    async def lose_all_of_it(pipeline: LocalPipeline) -> None:
        assert pipeline.decoder is not None
        count = len(pipeline.stages)
        lost = [*pipeline.stages, pipeline.decoder]
        pipeline.stages = [await pipeline.start_stage(index, count, *TWO) for index in range(count)]
        pipeline.decoder = await pipeline.start_decoder(*HASTY, *TWO)
        for child in lost:
            child.kill()
        for child in lost:
            await child.wait()

    async def start_the_first_again(pipeline: LocalPipeline) -> None:
        assert pipeline.decoder is not None
        others = [*pipeline.stages, pipeline.decoder]
        count = len(pipeline.stages)
        pipeline.stages = [await pipeline.start_stage(index, count) for index in range(count)]
        pipeline.decoder = await pipeline.start_decoder(*HASTY)
        await pipeline.decoder.wait_for_line("ready")
        for child in others:
            await child.stop()

    disturbed.by(lose_all_of_it)
    disturbed.by(start_the_first_again)
