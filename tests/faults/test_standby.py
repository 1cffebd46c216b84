"""Real processes, a real broker, the real model: a standby takes over a stage in the middle of four answers."""

import asyncio
import signal
from collections.abc import Callable

import pytest

from engine.contract.control import StageHeartbeat, from_json
from engine.local.pipeline import LocalPipeline
from engine.local.processes import Child
from engine.transport.nats import NatsTransport, connect
from engine.transport.subjects import Subjects
from tests.faults.asking import HASTY, Answers, Disturbed, answers, assert_marked, assert_same

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]


async def stand_by(pipeline: LocalPipeline, index: int, *options: str) -> Child:
    """A warm standby for a stage."""
    child = await pipeline.start_stage(index, len(pipeline.stages), "--standby", *options)
    await child.wait_for_line("standby")
    return child


def beside(disturbed: Disturbed, index: int, *options: str) -> Child:
    """A warm standby that is there before anybody asks: an answer does not take as long as a start."""
    return disturbed.do(lambda _, __: stand_by(disturbed.pipeline, index, *options))


async def until(pipeline: LocalPipeline, child: Child, wanted: Callable[[StageHeartbeat], bool]) -> StageHeartbeat:
    """A heartbeat of that worker that is as wanted."""
    subjects = Subjects("default", pipeline.slug)
    async with (
        asyncio.timeout(60),
        connect(pipeline.url, name="watch") as transport,
        transport.subscribe(f"{subjects.root}.heartbeat.stage.*") as inbox,
    ):
        while True:
            beat = from_json(StageHeartbeat, (await inbox.get()).data)
            if beat.pid == child.pid and wanted(beat):
                return beat


@pytest.mark.parametrize("index", [0, 1])
def test_a_standby_goes_on_for_a_stage_that_is_killed(disturbed: Disturbed, index: int) -> None:
    standby = beside(disturbed, index)

    async def kill_beside_a_standby(pipeline: LocalPipeline) -> None:
        lost, pipeline.stages[index] = pipeline.stages[index], standby
        lost.kill()
        await lost.wait()
        await until(pipeline, pipeline.stages[index], lambda beat: beat.state == "serving")

    disturbed.by(kill_beside_a_standby)


@pytest.mark.thorough
def test_answers_that_go_on_with_other_arithmetic_keep_what_was_told_and_are_marked(disturbed: Disturbed) -> None:
    other = beside(disturbed, 1, "--runner", "stateful")

    async def kill_beside_another_runner(pipeline: LocalPipeline) -> None:
        lost, pipeline.stages[1] = pipeline.stages[1], other
        lost.kill()
        await lost.wait()
        await until(pipeline, pipeline.stages[1], lambda beat: beat.state == "serving")

    async def as_before(_: NatsTransport, __: Subjects) -> None:
        pipeline = disturbed.pipeline
        pipeline.stages[1] = await stand_by(pipeline, 1)
        await other.stop()
        await until(pipeline, pipeline.stages[1], lambda beat: beat.state == "serving")

    assert_marked(disturbed.calm, disturbed.told(kill_beside_another_runner))
    disturbed.do(as_before)


def test_a_stage_that_hung_and_comes_back_stands_by_and_computes_nothing_more(disturbed: Disturbed) -> None:
    back: list[tuple[Child, int]] = []

    standby = beside(disturbed, 1)

    async def replace_a_stopped_one(pipeline: LocalPipeline) -> None:
        stale, pipeline.stages[1] = pipeline.stages[1], standby
        stale.signal(signal.SIGSTOP)
        await until(pipeline, pipeline.stages[1], lambda beat: beat.state == "serving")
        stale.signal(signal.SIGCONT)
        beat = await until(pipeline, stale, lambda beat: beat.standby)
        back.append((stale, beat.steps))

    async def compare_and_end(_: NatsTransport, __: Subjects) -> None:
        [(stale, steps)] = back
        settled = await until(disturbed.here.pipeline, stale, lambda beat: not beat.waiting)
        assert settled.steps - steps <= 1  # what was on the device
        assert (await until(disturbed.here.pipeline, stale, lambda _: True)).steps == settled.steps
        stale.signal(signal.SIGTERM)
        assert await stale.wait() == 0

    disturbed.by(replace_a_stopped_one)
    disturbed.here.do(compare_and_end)


def test_every_process_is_replaced_under_load_and_no_request_is_lost(disturbed: Disturbed) -> None:
    over, rounds = asyncio.Event(), list[Answers]()

    async def again_and_again(
        transport: NatsTransport, subjects: Subjects, tag: str, halfway: asyncio.Event
    ) -> Answers:
        while not over.is_set() or not rounds:  # somebody asks from the first to the last replacement
            rounds.append(await answers(transport, subjects, f"{tag}-{len(rounds)}", halfway))
        return rounds[-1]

    async def replace_all(pipeline: LocalPipeline) -> None:
        for index, old in enumerate(list(pipeline.stages)):
            new = pipeline.stages[index] = await pipeline.start_stage(index, len(pipeline.stages), "--standby")
            await until(pipeline, new, lambda beat: beat.state == "loading")
            old.signal(signal.SIGTERM)  # it serves until the new one can
            assert await old.wait() == 0
        leaving = pipeline.decoder
        assert leaving is not None
        pipeline.decoder = await pipeline.start_decoder(*HASTY)
        leaving.signal(signal.SIGTERM)
        assert await leaving.wait() == 0
        await pipeline.decoder.wait_for_line("ready")
        over.set()

    disturbed.by(replace_all, again_and_again)
    for answered in rounds:
        assert_same(disturbed.calm, answered)


def test_a_stage_that_gives_way_goes_on_alone_and_hands_over_once_somebody_stands_by(disturbed: Disturbed) -> None:
    away: list[Child] = []

    async def crowd_out(pipeline: LocalPipeline) -> None:
        always = ("--yield", "--yield-cpu", "0", "--yield-after", "0")  # whatever runs on this machine is too much
        old, crowded = pipeline.stages[1], await pipeline.start_stage(1, len(pipeline.stages), "--standby", *always)
        await crowded.wait_for_line("standby")
        old.kill()
        await old.wait()
        alone = await until(pipeline, crowded, lambda beat: beat.state == "serving" and bool(beat.yields))
        assert "others use" in alone.yields
        pipeline.stages[1] = await stand_by(pipeline, 1)
        await until(pipeline, crowded, lambda beat: beat.standby)
        away.append(crowded)

    disturbed.by(crowd_out)
    assert "no other worker can take over stage 1" in away[0].log.read_text()
    disturbed.here.do(lambda _, __: away[0].stop())
