"""Who has a stage, who stands by for it, who leaves it: conclusions from heartbeats, and a worker that draws them."""

import asyncio
from typing import Any

import pytest

from engine.contract.control import SUSPECT_SECONDS, DecoderHeartbeat, Speculation, StageHeartbeat, WorkerState, to_json
from engine.contract.errors import ErrorCode
from engine.contract.ids import Epoch
from stages.heartbeat import Loaded, heartbeat
from stages.identity import Identity
from stages.load import Load
from stages.peers import Peers, superseded
from stages.place import Place, Terms
from stages.rivals import rival
from stages.worker import StageWorker
from tests.stages.fakes import SUBJECTS, AddingShard, identity, step
from tests.stages.test_worker import HEARTBEAT, Bench, run

MINE, OTHER = identity(incarnation=7), identity(incarnation=8, pid=2)


def beat(who: Identity = OTHER, state: WorkerState = "ready", **changes: Any) -> StageHeartbeat:
    fields = {**{name: getattr(heartbeat(who, state, Load(0.0), None), name) for name in StageHeartbeat.__slots__}}
    return StageHeartbeat(**(fields | changes))


def decoder(pid: int = 3, host: str = "here") -> DecoderHeartbeat:
    return DecoderHeartbeat(
        decoder="d", state="serving", waits_for="", epoch=1, model="model", host=host, pid=pid, waiting=0, running=0,
        blocks=0, free_blocks=0, steps=0, steps_in_flight=0, replays=0, tokens=0, tokens_per_second=0.0,
        speculation=Speculation(),
    )  # fmt: skip


def peers(*others: StageHeartbeat | DecoderHeartbeat) -> Peers:
    here = Peers(MINE)
    for other in others:
        here.observe(other, 0.0)
    return here


@pytest.mark.parametrize(
    ("other", "takes_over"),
    [
        (beat(standby=True), True),
        (beat(state="loading", standby=True), True),  # it is waited for
        (beat(), True),
        (beat(state="draining"), False),
        (beat(yields="on battery"), False),
        (beat(profile="fast"), False),  # the text would change
        (beat(split="another"), False),
        (beat(pipeline="two"), False),
        (beat(stage=1), False),
        (beat(MINE), False),
    ],
)
def test_who_can_take_over(other: StageHeartbeat, takes_over: bool) -> None:
    assert (peers(decoder(), other).successor(0.0) is not None) == takes_over


def test_who_was_heard_too_long_ago_takes_nothing_over_and_without_a_decoder_nobody_does() -> None:
    assert peers(decoder(), beat(standby=True)).successor(SUSPECT_SECONDS) is None
    assert peers(beat(standby=True)).successor(0.0) is None


def test_neighbours_are_the_processes_on_our_host() -> None:
    assert sorted(peers(decoder(3), decoder(4, host="there"), beat(OTHER), beat(MINE)).neighbours()) == [1, 2, 3]


@pytest.mark.parametrize(
    ("other", "lost"),
    [
        (beat(state="serving", epoch=6), True),
        (beat(state="serving", epoch=5), False),  # the same epoch has one worker per stage: this one is older news
        (beat(state="ready", epoch=6), False),
        (beat(MINE, state="serving", epoch=6), False),
        (beat(state="serving", epoch=6, stage=1), False),
    ],
)
def test_a_worker_of_a_later_epoch_has_our_stage(other: StageHeartbeat, lost: bool) -> None:
    assert superseded(MINE, Epoch(5), other) == lost


def test_a_worker_gives_way_to_no_standby_and_a_standby_to_nobody() -> None:
    assert rival(MINE, "loading", beat(identity(incarnation=6), standby=True)) is None
    assert rival(MINE, "loading", beat(identity(incarnation=6), "loading", standby=True)) is None
    place = Place(MINE, standby=True)
    assert not place.observe(beat(state="serving", epoch=3), "loading", Epoch(0))


def test_giving_way_without_a_successor_is_said(caplog: pytest.LogCaptureFixture) -> None:
    place = Place(MINE, standby=False)
    place.observe(decoder(), "ready", Epoch(0))
    place.give_way("on battery", serves=True)
    assert "on battery, but no other worker can take over stage 0" in caplog.text
    caplog.clear()
    place.observe(beat(standby=True), "ready", Epoch(0))
    with caplog.at_level("INFO"):
        place.give_way("on battery", serves=True)
    assert "giving way to the worker on here (pid 2)" in caplog.text


def test_a_worker_that_is_needed_although_it_would_give_way_says_so(caplog: pytest.LogCaptureFixture) -> None:
    place = Place(MINE, standby=True)
    place.give_way("on battery", serves=False)
    assert "going on" not in caplog.text
    place.taken_up()
    assert not place.standby
    assert "going on" in caplog.text


async def started(
    at: Bench, who: Identity, shard: AddingShard, terms: Terms, stop: asyncio.Event | None = None
) -> tuple[StageWorker, "asyncio.Task[None]"]:
    """A worker once it has announced itself."""
    said = asyncio.Event()
    worker = StageWorker(
        at.transport, SUBJECTS, who, lambda: Loaded(shard), announce=lambda _: said.set(), terms=terms, listen=0.0,
        heartbeat=HEARTBEAT,
    )  # fmt: skip
    task = asyncio.create_task(worker.run(stop or at.stop))
    await said.wait()
    return worker, task


def test_a_standby_serves_once_an_epoch_is_opened_on_it() -> None:
    async def scenario(at: Bench) -> None:
        _, task = await started(at, MINE, AddingShard(last=True), Terms(standby=True))
        await at.heartbeat(lambda h: h.standby and h.state == "ready")
        assert (await at.open(MINE)).code == ""
        await at.heartbeat(lambda h: not h.standby and h.state == "serving")
        await at.send(MINE, step(0))
        assert (await at.result()).number == 0
        at.stop.set()
        await task

    run(scenario)


def test_a_worker_that_was_replaced_while_it_hung_stands_by_and_drops_the_steps_of_its_epoch() -> None:
    async def scenario(at: Bench) -> None:
        shard = AddingShard(last=True)
        _, task = await started(at, MINE, shard, Terms())
        await at.open(MINE, 1)
        await at.transport.publish(SUBJECTS.stage_heartbeat(0), to_json(beat(state="serving", epoch=2)))
        await at.heartbeat(lambda h: h.incarnation == 7 and h.standby and h.state == "ready")
        await at.send(MINE, step(0, epoch=1))
        assert (await at.open(MINE, 3)).code == ""  # behind the step, in the same thread
        assert shard.seen == []
        await at.heartbeat(lambda h: h.incarnation == 7 and not h.standby and h.state == "serving")
        at.stop.set()
        await task

    run(scenario)


def test_a_probe_is_answered_by_the_broker_alone_when_nobody_is_there() -> None:
    async def scenario(at: Bench) -> None:
        _, task = await started(at, MINE, AddingShard(last=True), Terms())
        control = SUBJECTS.stage_control(0, MINE.incarnation)
        await at.transport.publish(control, b"", reply=SUBJECTS.done("d0", 1))
        assert (await at.open(MINE)).code == ""
        at.stop.set()
        await task
        await at.transport.publish(control, b"", reply=SUBJECTS.done("d0", 1))
        assert await at.failure() == ErrorCode.UNAVAILABLE  # the goodbye: nothing came before it
        assert (await at.done.get()).no_responder

    run(scenario)


async def stopping(at: Bench, grace: float, shard: AddingShard) -> "asyncio.Task[None]":
    """A serving worker that has been told to stop beside a standby."""
    _, task = await started(at, MINE, shard, Terms(grace=grace))
    await at.open(MINE)
    await at.transport.publish(SUBJECTS.decoder_heartbeat("d"), to_json(decoder()))
    await at.transport.publish(SUBJECTS.stage_heartbeat(0), to_json(beat(state="loading", standby=True)))
    await at.heartbeat(lambda h: h.incarnation == 7)  # it has heard both
    at.stop.set()
    await at.heartbeat(lambda h: h.incarnation == 7 and h.state == "draining")
    return task


def test_a_worker_told_to_stop_serves_on_until_its_successor_has_the_stage() -> None:
    async def scenario(at: Bench) -> None:
        task = await stopping(at, 60.0, AddingShard(last=True))
        await at.send(MINE, step(0), step(1))
        assert [(await at.result()).number, (await at.result()).number] == [0, 1]
        assert not task.done()
        await at.transport.publish(SUBJECTS.stage_heartbeat(0), to_json(beat(state="serving", epoch=2)))
        await task

    run(scenario)


def test_a_successor_that_never_comes_is_waited_for_within_the_grace_period_only() -> None:
    async def scenario(at: Bench) -> None:
        task = await stopping(at, 0.2, AddingShard(last=True))
        await task

    run(scenario)
