"""How deep the queues are: from heartbeats and from JetStream."""

import asyncio
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from engine.contract.control import (
    HEARTBEAT_SECONDS,
    MAIN_PIPELINE,
    SUSPECT_SECONDS,
    DecoderHeartbeat,
    StageHeartbeat,
    from_json,
)
from engine.contract.errors import BrokerError, FrameError
from engine.transport.base import Incoming, QueueDepth, Transport, WorkQueue
from engine.transport.durable import open_queue
from engine.transport.subjects import Subjects

COLLECT_SECONDS: Final = 1.5 * HEARTBEAT_SECONDS


@dataclass(frozen=True, slots=True)
class Depths:
    """Everything that waits, at one moment."""

    stages: tuple[StageHeartbeat | None, ...]  # by index; None: no worker is heard
    spares: tuple[StageHeartbeat, ...]  # further workers of a stage that has one
    decoder: DecoderHeartbeat | None
    prompts: QueueDepth | None  # None: there is no queue

    def as_dict(self) -> dict[str, Any]:
        """One object for scripts: stages[], decoder, prompts."""
        return {
            "stages": [
                {"stage": index, "state": "missing"} if worker is None else asdict(worker)
                for index, worker in enumerate(self.stages)
            ],
            "spares": [asdict(worker) for worker in self.spares],
            "decoder": asdict(self.decoder) if self.decoder else None,
            "prompts": asdict(self.prompts) if self.prompts else None,
        }


class Collector:
    """Keeps the latest heartbeat of everybody."""

    def __init__(self, transport: Transport, subjects: Subjects) -> None:
        self._transport, self._subjects = transport, subjects
        self._workers: dict[int, tuple[float, StageHeartbeat]] = {}
        self._decoders: dict[str, tuple[float, DecoderHeartbeat]] = {}
        self._queue: WorkQueue | None = None

    def observe(self, message: Incoming, now: float) -> None:
        """Take in a heartbeat; what is not one is ignored."""
        with suppress(FrameError):
            if message.subject.startswith(self._subjects.decoder_heartbeat("")):
                decoder = from_json(DecoderHeartbeat, message.data)
                self._decoders[decoder.decoder] = (now, decoder)
            else:
                worker = from_json(StageHeartbeat, message.data)
                self._workers[worker.incarnation] = (now, worker)

    async def depths(self, now: float) -> Depths:
        """What is known at `now` (time.monotonic()), the queue included."""
        return replace(self.heard(now), prompts=await self._prompts())

    def processes(self, now: float) -> tuple[list[StageHeartbeat], list[DecoderHeartbeat]]:
        """Everybody who was heard lately."""
        workers = [worker for at, worker in self._workers.values() if now - at < SUSPECT_SECONDS]
        return workers, [decoder for at, decoder in self._decoders.values() if now - at < SUSPECT_SECONDS]

    def heard(self, now: float) -> Depths:
        """What the heartbeats tell at `now`; nothing of the queue."""
        workers, decoders = self.processes(now)
        count = max((worker.stages for worker in workers), default=0)
        chosen = [self._serving([w for w in workers if w.stage == index]) for index in range(count)]
        serving = {worker.incarnation for worker in chosen if worker}
        return Depths(
            stages=tuple(chosen),
            spares=tuple(worker for worker in workers if worker.incarnation not in serving),
            decoder=max(decoders, key=_prominence, default=None),
            prompts=None,
        )

    @staticmethod
    def _serving(workers: list[StageHeartbeat]) -> StageHeartbeat | None:
        """The worker of the newest epoch, else the newest worker."""
        return max(workers, key=lambda worker: (worker.epoch, worker.incarnation), default=None)

    async def _prompts(self) -> QueueDepth | None:
        try:
            if self._queue is None:
                self._queue = await open_queue(self._transport, self._subjects, use="look")
            return await self._queue.depth()
        except BrokerError:
            return None

    async def listen(self) -> None:
        """Observe for ever."""
        async with self._transport.subscribe(self._subjects.heartbeats) as inbox:
            while True:
                self.observe(await inbox.get(), time.monotonic())


def _prominence(decoder: DecoderHeartbeat) -> tuple[bool, bool, int]:
    """Of several pipelines one that serves is shown, the main one if it does."""
    return decoder.state == "serving", decoder.pipeline == MAIN_PIPELINE, decoder.epoch


async def collect_once(transport: Transport, subjects: Subjects) -> Depths:
    """Listen for one and a half heartbeats, then tell."""
    collector = Collector(transport, subjects)
    with suppress(TimeoutError):
        async with asyncio.timeout(COLLECT_SECONDS):
            await collector.listen()
    return await collector.depths(time.monotonic())
