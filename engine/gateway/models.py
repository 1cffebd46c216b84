"""Which models are served right now, as far as heartbeats tell."""

import asyncio
import time
from contextlib import suppress
from typing import Final

from engine.contract.control import HEARTBEAT_SECONDS
from engine.contract.errors import UsageError
from engine.gateway.errors import ApiError, unavailable
from engine.monitoring.depth import Collector, Depths
from engine.transport.base import Transport
from engine.transport.subjects import Subjects

LISTEN_SECONDS: Final = 1.2 * HEARTBEAT_SECONDS
MAX_MODELS: Final = 64  # of one deployment; what comes after is not shown
Known = tuple[Subjects, Collector]


class Models:
    """Every model of a deployment that was heard since the start, or named."""

    def __init__(self, transport: Transport, deployment: str, named: tuple[str, ...] = ()) -> None:
        self._transport, self._deployment = transport, deployment
        self._known: dict[str, Known] = {}
        self._heard = asyncio.Event()
        self.named = named
        for name in named:
            self._add(name)

    @property
    def names(self) -> list[str]:
        """All of them."""
        return sorted(self._known)

    def find(self, model: str) -> Subjects:
        """Where to ask a model that serves. Raises ApiError: 404 unknown, 503 known and not serving."""
        if not self._transport.connected:
            raise unavailable("the broker is not reachable")
        if not self._known:
            raise unavailable("no model is heard: start decoder-run and stage-run")
        if model not in self._known:
            reason = f"the model {model!r} does not exist; served are {', '.join(self.names)}"
            raise ApiError(404, reason, code="model_not_found", param="model")
        if reason := self.outage(model):
            raise unavailable(f"{model} is not served right now: {reason}")
        return self._known[model][0]

    def outage(self, model: str) -> str:
        """Why a model is not served right now, "" when it is."""
        return outage(self._known[model][1].heard(time.monotonic()))

    async def depths(self) -> dict[str, Depths]:
        """What waits where, by model."""
        return {name: await collector.depths(time.monotonic()) for name, (_, collector) in self._known.items()}

    async def listen(self) -> None:
        """Observe for ever."""
        async with self._transport.subscribe(Subjects.all_heartbeats(self._deployment)) as inbox:
            while True:
                message = await inbox.get()
                name = message.subject.split(".")[2]
                with suppress(UsageError):
                    if name in self._known or len(self._known) < MAX_MODELS:
                        self._add(name).observe(message, time.monotonic())
                        self._heard.set()

    async def first(self) -> None:
        """Return once what is known serves, or everybody who is there has had the time to say so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_SECONDS):
                while not self._known or any(map(self.outage, self._known)):
                    self._heard.clear()
                    await self._heard.wait()

    def _add(self, name: str) -> Collector:
        if name not in self._known:
            subjects = Subjects(self._deployment, name)
            self._known[name] = subjects, Collector(self._transport, subjects)
        return self._known[name][1]


def outage(depths: Depths) -> str:
    """Why nothing can be answered, "" when it can."""
    decoder = depths.decoder
    if decoder is None:
        return "no decoder is heard"
    if not depths.stages:
        return "no stage is heard"
    if missing := [str(index) for index, worker in enumerate(depths.stages) if worker is None]:
        return f"stage {', '.join(missing)} is missing"
    if decoder.waits_for:
        return f"its decoder waits for {decoder.waits_for}"
    return "its decoder is stopping" if decoder.state == "draining" else ""
