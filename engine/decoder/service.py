"""The decoder process: prompts in, steps through the pipeline, answers out. Decisions are `core`'s, I/O is here."""

import asyncio
import logging
import os
import platform
from collections.abc import Callable
from uuid import uuid4

from engine.contract.control import HEARTBEAT_SECONDS, DecoderHeartbeat, to_json
from engine.contract.errors import BrokerError, LeaseLostError
from engine.contract.ids import RequestId
from engine.contract.traces import Tracer
from engine.decoder.admission import Admission, now
from engine.decoder.config import DecoderConfig
from engine.decoder.core import DecoderCore, Progress
from engine.decoder.desk import Desk
from engine.decoder.drafters import Drafter, Drafting
from engine.decoder.epoch import DeviceLostError, EpochLeftError, EpochLostError, EpochRunner, capacity_of
from engine.decoder.fleet import Fleet
from engine.decoder.intake import Intake
from engine.decoder.ledger import open_requests
from engine.decoder.numerics import numerics_of
from engine.decoder.outbox import Outbox
from engine.decoder.pipeline import Pipeline, Route
from engine.decoder.traced import StepTraces
from engine.monitoring.window import Rate
from engine.transport.base import EventLog, Inbox, Transport, WorkQueue
from engine.transport.durable import open_events, open_queue
from engine.transport.subjects import Subjects

log = logging.getLogger("shardline.decoder")


class DecoderService:
    """Serves one pipeline until told to stop."""

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        admission: Admission,
        config: DecoderConfig,
        *,
        announce: Callable[[str], None],
        drafter: Drafter | None = None,
        heartbeat: float = HEARTBEAT_SECONDS,
        tracer: Tracer | None = None,
    ) -> None:
        self._transport, self._subjects, self._config = transport, subjects, config
        self._manifest, self._announce, self._heartbeat_seconds = admission.manifest, announce, heartbeat
        self.id = uuid4().hex[:12]
        self._core = DecoderCore()
        self._intake = Intake(transport, subjects, max_deliveries=config.max_deliveries)
        self._outbox = Outbox(transport)
        places = config.max_running + config.max_waiting
        self._desk = Desk(self._core, admission, subjects, self._intake, self._outbox, places=places, tracer=tracer)
        self._tracer = tracer
        self._drafting = Drafting(self._core, drafter, self._desk.work)
        self._epochs = self._epoch = self._steps = 0
        self._rate = Rate()
        self._draining = False
        self.lost = 0  # epochs that ended with steps in flight, those lost with the broker left out
        self._pipe: Pipeline | None = None  # once it runs

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`; accepted requests are finished first (the caller bounds how long).

        Raises LeaseLostError once another decoder serves the pipeline: it is handed the requests.
        """
        try:
            await self._run(stop)
        except* LeaseLostError:
            await self._intake.give_back()
            raise

    async def _run(self, stop: asyncio.Event) -> None:
        subjects, desk, intake = self._subjects, self._desk, self._intake
        queue = await open_queue(self._transport, subjects, use="take")
        events = await open_events(self._transport, subjects, writer=self.id)
        pipeline = self._pipe = await self._pipeline()
        stages = range(len(self._manifest.stages))
        await self._transport.rehearse(*(subjects.stage(index, 0) for index in stages))
        await self._transport.rehearse(*(subjects.stage_control(index, 0) for index in stages))
        async with (
            self._transport.subscribe(subjects.done(self.id, "*"), wake=desk.work) as done,
            self._transport.subscribe(subjects.heartbeats) as heartbeats,
            self._transport.subscribe(subjects.cancel) as cancels,
            asyncio.TaskGroup() as tasks,
        ):
            sources = [self._take_jobs(pipeline, queue, events), self._take_requests(pipeline)]
            workers = [
                self._observe(heartbeats, pipeline),
                self._hand_on(pipeline),
                self._cancel(cancels),
                intake.keep_jobs(),
                desk.settle(),
                desk.expire(),
                self._outbox.run(events),
                self._beat(),
                self._drafting.run(),
                self._serve(pipeline, done),
            ]
            taking = [tasks.create_task(source) for source in sources]
            working = [tasks.create_task(worker) for worker in workers]
            await stop.wait()
            await self._drain(pipeline, taking, working)

    async def _pipeline(self) -> Pipeline:
        name = self._config.pipeline
        lease = await self._transport.lease(bucket=self._subjects.lease_bucket, key=self._subjects.lease_key(name))
        fleet = Fleet(split=self._manifest.split, stages=len(self._manifest.stages))
        return Pipeline(self._transport, self._subjects, lease, fleet, decoder=self.id, name=name)

    async def _take_jobs(self, pipeline: Pipeline, queue: WorkQueue, events: EventLog) -> None:
        """Durable prompts, once the pipeline is ours: while another decoder serves it they are that one's."""
        await pipeline.owned.wait()
        await self._intake.from_queue(queue, events, self._desk)

    async def _take_requests(self, pipeline: Pipeline) -> None:
        await pipeline.owned.wait()
        async with self._transport.subscribe(self._subjects.generate, group="decoders") as generate:
            await self._intake.from_requests(generate, self._desk)

    async def _observe(self, heartbeats: Inbox, pipeline: Pipeline) -> None:
        while True:
            pipeline.observe(await heartbeats.get())
            if pipeline.concern:
                self._desk.work.set()

    async def _hand_on(self, pipeline: Pipeline) -> None:
        """Durable prompts go back to the queue while another pipeline can answer them and this one cannot."""
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            if pipeline.better_elsewhere:
                self._intake.open.clear()
                if not self._intake.taking:  # else we might be handed the same prompts again
                    await self._desk.hand_back()

    async def _cancel(self, cancels: Inbox) -> None:
        while True:
            message = await cancels.get()
            self._desk.cancel(RequestId(message.data.decode(errors="replace")))

    async def _serve(self, pipeline: Pipeline, done: Inbox) -> None:
        """One epoch after the other, for ever."""
        while True:
            route = await pipeline.open()
            self._begin(route)
            runner = EpochRunner(
                self._transport,
                self._subjects,
                self._core,
                route,
                decoder=self.id,
                step_timeout=self._config.step_timeout,
                draft=self._drafting.start,
                concern=lambda: pipeline.concern,
            )
            runner.traces = StepTraces(self._tracer) if self._tracer else None
            try:
                await runner.run(done, self._desk.work, self._on_result)
            except EpochLeftError as left:
                log.info("epoch %d ends: %s; replaying %d requests", route.epoch, left, len(self._core.running))
            except EpochLostError as lost:
                self.lost += 1
                if isinstance(lost, DeviceLostError):
                    pipeline.distrust(lost.incarnation)
                self._report_loss(route, str(lost))
            except BrokerError as error:
                self._report_loss(route, f"with the broker: {error}")
            self._core.lose_epoch()
            self._desk.refuse_poison()

    def _report_loss(self, route: Route, why: str) -> None:
        again = [len(sequence.tokens) for sequence in self._core.running]
        log.warning("epoch %d lost: %s; replaying %d requests, %d tokens", route.epoch, why, len(again), sum(again))

    @property
    def replays(self) -> int:
        """Epochs raised after the first."""
        return max(self._epochs - 1, 0)

    @property
    def running(self) -> int:
        """Sequences in the pipeline."""
        return len(self._core.running)

    @property
    def open_requests(self) -> int:
        """Requests without their final event."""
        return self._desk.open_requests

    @property
    def resumed(self) -> int:
        """Answers that another decoder began and this one went on with."""
        return self._intake.resumed

    @property
    def draft_failures(self) -> int:
        """How often the draft model could not be asked."""
        return self._drafting.failures

    def _begin(self, route: Route) -> None:
        self._epoch, self._epochs = route.epoch, self._epochs + 1
        self._core.open_epoch(capacity_of(route, self._manifest, self._transport.max_payload, self._config))
        self._desk.numerics = numerics_of(route.chain, route.epoch)
        self._intake.open.set()
        self._desk.refuse_misfits()
        where = f"{len(route.chain)} stages, {route.first.runner} {route.first.profile}"
        log.info("epoch %d opened on %s", route.epoch, where)
        if self._epochs == 1:
            self._announce(f"ready decoder {self.id} for {self._subjects.model} on {where}")

    def _on_result(self, progress: list[Progress]) -> None:
        self._steps += 1
        moment = now()
        self._rate.add(sum(len(item.delta.ids) for item in progress), moment)
        self._desk.ledger.progressed(progress, moment)
        self._desk.progress(progress)

    async def _beat(self) -> None:
        subject = self._subjects.decoder_heartbeat(self.id)
        while True:
            try:
                await self._transport.publish(subject, to_json(self.heartbeat()))
            except BrokerError as error:
                log.debug("no heartbeat: %s", error)
            await asyncio.sleep(self._heartbeat_seconds)

    def heartbeat(self) -> DecoderHeartbeat:
        """What it says of itself at this moment."""
        core, moment = self._core, now()
        waits_for = "" if self._pipe is None else self._pipe.waits_for
        core.activity.observe(moment, active=bool(core.running or core.waiting))
        return DecoderHeartbeat(
            decoder=self.id,
            state="draining" if self._draining else "waiting" if waits_for or self._pipe is None else "serving",
            waits_for=waits_for,
            epoch=self._epoch,
            model=self._subjects.model,
            host=platform.node(),
            pid=os.getpid(),
            waiting=self._desk.open_requests - len(self._core.running),
            running=len(self._core.running),
            blocks=self._core.blocks.total,
            free_blocks=self._core.blocks.available,
            steps=self._steps,
            steps_in_flight=len(self._core.flights),
            replays=self.replays,
            tokens=self._rate.total,
            tokens_per_second=self._rate.per_second(moment),
            speculation=self._core.speculation.figures(self._core.schedule.times, self._drafting.failures),
            prefix_cache=self._core.prefix_cache(),
            scheduling=self._core.schedule.figures(self._core.running),
            pipeline=self._config.pipeline,
            answers=self._desk.ledger.answers(),
            active_seconds=round(core.activity.seconds, 3),
            oldest_waiting_ms=max((moment - s.arrived for s in core.waiting), default=0.0) * 1e3,
            preemptions=core.preemptions,
            resumed=self.resumed,
            open_requests=open_requests([*core.running, *core.waiting], moment),
            link=self._transport.link,
        )

    async def _drain(
        self, pipeline: Pipeline, taking: list[asyncio.Task[None]], working: list[asyncio.Task[None]]
    ) -> None:
        """Announce, stop taking, finish what was accepted, hand the rest and the lease back."""
        self._draining = True
        for task in taking:
            task.cancel()
        try:
            await self._desk.finished()
        finally:
            for task in working:
                task.cancel()
            await self._intake.give_back()
            await pipeline.release()
