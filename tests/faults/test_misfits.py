"""Real processes, a real broker, the real model: a worker that does not fit stands in the place of one that is lost."""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from engine.local.pipeline import KV_MEMORY, LocalPipeline
from engine.local.processes import Child
from engine.transport.nats import NatsTransport
from engine.transport.subjects import Subjects
from tests.conftest import Shards
from tests.faults.asking import Disturbed
from tests.faults.broker import logged, mark
from tests.faults.test_decoder import decoder_of

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]
Misfit = Callable[[LocalPipeline, Shards], Awaitable[Child]]


async def of_another_split(pipeline: LocalPipeline, shards: Shards) -> Child:
    return await replace(pipeline, shards=shards(3)).start_stage(1, 2, "--standby")


async def of_another_version(pipeline: LocalPipeline, _: Shards) -> Child:
    command = [sys.executable, "-m", "tests.faults.newer_stage", "--index", "1", "--standby", "--threads", "1"]
    command += ["--kv-memory", KV_MEMORY, "--shards", str(pipeline.shards), "--nats", pipeline.url]
    return await pipeline.processes.start("stage-1", command)


async def with_other_settings(pipeline: LocalPipeline, _: Shards) -> Child:
    return await pipeline.start_stage(1, 2, "--standby", "--profile", "fast")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("start", "why"),
    [
        (of_another_split, "serves another split"),
        (of_another_version, "speaks protocol"),
        (with_other_settings, "stage 1 runs fast"),
    ],
)
def test_a_worker_that_does_not_fit_is_refused_by_name_and_answers_wait_for_one_that_does(
    disturbed: Disturbed, shards: Shards, start: Misfit, why: str
) -> None:
    async def place(_: NatsTransport, __: Subjects) -> Child:
        misfit = await start(disturbed.pipeline, shards)
        await misfit.wait_for_line("standby")
        return misfit

    misfit = disturbed.do(place)

    async def lose_a_stage(pipeline: LocalPipeline) -> None:
        before = mark(decoder_of(pipeline))
        pipeline.stages[1].kill()
        await pipeline.stages[1].wait()
        await logged(decoder_of(pipeline), why, before)
        pipeline.stages[1] = await pipeline.start_stage(1, len(pipeline.stages))
        await pipeline.stages[1].wait_for_line("ready")
        await misfit.stop()

    disturbed.by(lose_a_stage)
