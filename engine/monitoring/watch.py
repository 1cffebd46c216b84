"""Everything that is heard in one deployment, whatever models it serves."""

import asyncio
import time
from contextlib import suppress
from typing import Final

from engine.contract.control import DecoderHeartbeat, StageHeartbeat
from engine.contract.errors import UsageError
from engine.monitoring.depth import Collector, Depths
from engine.monitoring.metrics import Sample, decoder_samples, pipeline_samples, stage_samples
from engine.transport.base import Transport
from engine.transport.subjects import Subjects

MAX_MODELS: Final = 64  # of one deployment; what comes after is not shown


class Watch:
    """Every model of a deployment that was heard since the start, or named."""

    def __init__(self, transport: Transport, deployment: str, named: tuple[str, ...] = ()) -> None:
        self._transport, self._deployment = transport, deployment
        self._known: dict[str, tuple[Subjects, Collector]] = {}
        self.news = asyncio.Event()  # set at every heartbeat
        for name in named:
            self._add(name)

    @property
    def names(self) -> list[str]:
        """All models."""
        return sorted(self._known)

    def subjects(self, model: str) -> Subjects:
        """Where to ask a model. Raises KeyError for one that is not known."""
        return self._known[model][0]

    def heard(self, model: str) -> Depths:
        """What the heartbeats of a model tell now. Raises KeyError."""
        return self._known[model][1].heard(time.monotonic())

    def processes(self, model: str) -> tuple[list[StageHeartbeat], list[DecoderHeartbeat]]:
        """Everybody of a model who was heard lately. Raises KeyError."""
        return self._known[model][1].processes(time.monotonic())

    async def depths(self) -> dict[str, Depths]:
        """What waits where, by model."""
        return {name: await collector.depths(time.monotonic()) for name, (_, collector) in self._known.items()}

    async def samples(self) -> list[Sample]:
        """All figures of all processes, for one scrape."""
        found: list[Sample] = []
        for model, depths in (await self.depths()).items():
            workers, decoders = self._known[model][1].processes(time.monotonic())
            found += pipeline_samples(self._deployment, model, depths)
            found += [sample for worker in workers for sample in stage_samples(self._deployment, worker)]
            found += [sample for decoder in decoders for sample in decoder_samples(self._deployment, decoder)]
        return found

    async def listen(self) -> None:
        """Observe for ever."""
        async with self._transport.subscribe(Subjects.all_heartbeats(self._deployment)) as inbox:
            while True:
                message = await inbox.get()
                name = message.subject.split(".")[2]
                with suppress(UsageError):
                    if name in self._known or len(self._known) < MAX_MODELS:
                        self._add(name).observe(message, time.monotonic())
                        self.news.set()

    def _add(self, name: str) -> Collector:
        if name not in self._known:
            subjects = Subjects(self._deployment, name)
            self._known[name] = subjects, Collector(self._transport, subjects)
        return self._known[name][1]
