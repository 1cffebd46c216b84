"""Running one epoch: publish steps, take results, notice when it is lost."""

import asyncio
import logging
import os
import platform
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any, Final

from engine.contract.control import StageHeartbeat
from engine.contract.copies import with_copies
from engine.contract.errors import ErrorCode, FrameError
from engine.contract.ids import Incarnation, StepNumber
from engine.contract.manifest import Manifest
from engine.contract.messages import Step, StepFailed, StepResult, StepSide
from engine.contract.side import RowSide
from engine.contract.traces import with_traces
from engine.decoder.batching import StepLimits
from engine.decoder.config import DecoderConfig
from engine.decoder.core import Capacity, DecoderCore, PlannedStep, Progress
from engine.decoder.fleet import Concern, smallest_pool
from engine.decoder.pace import Pace
from engine.decoder.pipeline import Route
from engine.decoder.traced import StepTraces
from engine.transport.base import Inbox, Incoming, Transport
from engine.transport.subjects import Subjects
from engine.wire.frame import FRAME_MARGIN, PRELUDE, decode, encode

PROBE_SECONDS: Final = 0.25  # without news; a worker that died with the only step under way is noticed by nobody else
FIRST_STEPS: Final = 4.0  # times the usual timeout: nothing has been measured yet, and kernels may be compiled
log = logging.getLogger("shardline.decoder")


class EpochLostError(Exception):
    """A step of this epoch will not come back; says why."""


class DeviceLostError(EpochLostError):
    """A worker's device failed on a step."""

    def __init__(self, message: str, incarnation: Incarnation) -> None:
        super().__init__(message)
        self.incarnation = incarnation


class EpochLeftError(EpochLostError):
    """All steps came back, and a worker is to be replaced."""


def capacity_of(route: Route, manifest: Manifest, max_payload: int, config: DecoderConfig) -> Capacity:
    """The intersection of what the chain's workers can do."""
    blocks, block_size = smallest_pool(route.chain)
    slots = [h.slots for h in route.chain if h.slots]
    limits = StepLimits(
        steps_in_flight=config.steps_in_flight or len(route.chain),
        smoothness=config.smoothness,
        prefill_tokens=config.prefill_tokens,
        max_tokens=min((h.max_step_tokens for h in route.chain if h.max_step_tokens), default=0),
        min_row_tokens=max(h.min_row_tokens for h in route.chain),
        context_length=min(manifest.context_length, *(h.context_length for h in route.chain)),
        block_size=block_size,
        max_bytes=max_payload - FRAME_MARGIN - PRELUDE.size,
        hidden_size=manifest.hidden_size,
    )
    return Capacity(
        blocks=blocks,
        slots=min([config.max_running, *slots]),
        limits=limits,
        stages=len(route.chain),
        adaptive=not config.steps_in_flight,
        stateful=any(h.slots for h in route.chain),
        draft_core=config.draft == "remote" or spare_core(route.chain, platform.node(), os.cpu_count() or 1),
        window=min((h.window for h in route.chain if h.window), default=0),
    )


def spare_core(chain: Items[StageHeartbeat], host: str, cores: int) -> bool:
    """Whether the stages on this machine leave one of its cores to others."""
    here = [h for h in chain if h.host == host and h.device.startswith("CPU")]
    return all(h.threads for h in here) and sum(h.threads for h in here) < cores


class EpochRunner:
    """Keeps the pipe full until a step is lost."""

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        core: DecoderCore,
        route: Route,
        *,
        decoder: str,
        step_timeout: float,
        draft: Callable[[], None],
        concern: Callable[[], Concern | None],
    ) -> None:
        """`draft` is called whenever sequences may want drafts, before steps are planned.

        `concern` says why the epoch should end, if it should; `work` of `run` is set when that changes.
        """
        self._transport, self._core, self._route, self._draft = transport, core, route, draft
        self._concern = concern
        self._done = subjects.done(decoder, route.epoch)
        self._controls = [subjects.stage_control(worker.stage, worker.incarnation) for worker in route.chain]
        self._subject = subjects.stage(route.first.stage, route.first.incarnation)
        self._side_subject = subjects.stage(route.last.stage, route.last.incarnation)
        self._pace = Pace(floor=step_timeout, first=FIRST_STEPS * step_timeout)
        self._sent: dict[StepNumber, tuple[float, int, float]] = {}  # when, tokens, deadline
        self._reconnects = transport.link.reconnects
        self.traces: StepTraces | None = None
        self.ignored = 0  # late, repeated or foreign messages

    async def run(self, done: Inbox, work: asyncio.Event, on_result: Callable[[list[Progress]], None]) -> None:
        """Serve this epoch. `work` is set when a message or a request arrives. Raises EpochLostError, BrokerError."""
        try:
            await self._run(done, work, on_result)
        finally:
            if self.traces:
                self.traces.lost()

    async def _run(self, done: Inbox, work: asyncio.Event, on_result: Callable[[list[Progress]], None]) -> None:
        while True:
            work.clear()
            self._check_link()
            if not self._leaving():
                await self._fill()
            message = done.take()
            if message is None:
                await self._wait(work)
            elif message.subject != self._done:
                self.ignored += 1  # of an older epoch
            else:
                self._handle(message, on_result)

    def _leaving(self) -> bool:
        """Whether no more steps may go out. Raises EpochLostError once nothing is to be waited for."""
        concern = self._concern()
        if concern is None:
            return False
        if concern.urgent:
            raise EpochLostError(concern.text)
        if not self._sent:
            raise EpochLeftError(concern.text)
        return True

    async def _fill(self) -> None:
        self._draft()
        while (step := self._core.next_step(time.monotonic())) is not None:
            await self._publish(step)
            self._draft()

    def _check_link(self) -> None:
        """Results of steps that were out are lost with the link, or as good: a replay costs less than their deadline.

        Raises EpochLostError.
        """
        before, self._reconnects = self._reconnects, self._transport.link.reconnects
        if before != self._reconnects and self._sent:
            raise EpochLostError(f"the link to the broker was lost with {len(self._sent)} steps out")

    async def _publish(self, planned: PlannedStep) -> None:
        step = Step(
            epoch=self._route.epoch,
            number=planned.number,
            incarnation=Incarnation(self._route.first.incarnation),
            rows=planned.rows,
            value=planned.tokens,
            sides=len(planned.sides),
            extra=with_copies(planned.copies) | self._traced(planned.number),
        )
        for rows in planned.sides:
            await self._transport.publish(self._side_subject, encode(self._side(planned, rows)), reply=self._done)
        tokens, sent = len(planned.tokens), time.monotonic()
        self._sent[planned.number] = (sent, tokens, sent + self._pace.patience(tokens))
        await self._transport.publish(self._subject, encode(step), reply=self._done)

    def _traced(self, number: StepNumber) -> dict[str, Any]:
        if self.traces is None:
            return {}
        return with_traces(self.traces.sent(number, self._core.flights[number].plans, time.monotonic()))

    def _side(self, planned: PlannedStep, rows: tuple[RowSide, ...]) -> StepSide:
        last = Incarnation(self._route.last.incarnation)
        return StepSide(epoch=self._route.epoch, number=planned.number, incarnation=last, rows=rows)

    async def _wait(self, work: asyncio.Event) -> None:
        """Wait for news, or for the oldest step's deadline. Raises EpochLostError."""
        if not self._sent:
            await work.wait()
            return
        number, (sent, tokens, deadline) = next(iter(self._sent.items()))
        while (left := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(min(left, PROBE_SECONDS)):
                    await work.wait()
                    return
            except TimeoutError:
                await self._probe()
        waited = time.monotonic() - sent
        raise EpochLostError(f"step {number} of {tokens} tokens is out for {waited:.1f} s")

    async def _probe(self) -> None:
        """Say nothing to every worker: the broker tells us, where results arrive, when one is not there."""
        for subject in self._controls:
            await self._transport.publish(subject, b"", reply=self._done)

    def _handle(self, message: Incoming, on_result: Callable[[list[Progress]], None]) -> None:
        if message.no_responder:
            raise EpochLostError("the broker says that a stage is gone")
        try:
            frame = decode(message.data)
        except FrameError as error:
            raise EpochLostError(f"a result that does not decode: {error}") from error
        match frame:
            case StepFailed(code=ErrorCode.STEP_REPEATED):
                self.ignored += 1  # a frame came twice; it was computed once
            case StepFailed():
                text = f"stage {frame.stage} refused step {frame.number}: {frame.code}, {frame.message}"
                if frame.code == ErrorCode.DEVICE_FAILED:
                    raise DeviceLostError(text, frame.incarnation)
                raise EpochLostError(text)
            case StepResult() if frame.incarnation == self._route.last.incarnation and frame.number in self._sent:
                on_result(self._take(frame))
            case StepResult() | Step() | StepSide():
                self.ignored += 1

    def _take(self, frame: StepResult) -> list[Progress]:
        oldest = next(iter(self._sent))
        if frame.number != oldest:  # stages execute in order: what is overtaken is lost
            raise EpochLostError(f"the result of step {oldest} is missing, step {frame.number} came")
        now = time.monotonic()
        sent, tokens, _ = self._sent.pop(frame.number)
        self._pace.observe(tokens, now - sent)
        if self.traces:
            self.traces.returned(frame.number, now)
        try:
            return self._core.result(frame.number, frame.tokens, now, frame.logprobs)
        except ValueError as error:
            raise EpochLostError(f"the result of step {frame.number} has the wrong number of tokens") from error
