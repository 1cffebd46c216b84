"""Which models are served right now, as far as heartbeats tell."""

import asyncio
from contextlib import suppress
from typing import Final

from engine.contract.control import HEARTBEAT_SECONDS
from engine.gateway.calls import Call, Place
from engine.gateway.errors import ApiError, unavailable
from engine.monitoring.depth import Depths
from engine.monitoring.health import outage
from engine.monitoring.watch import Watch
from engine.transport.base import Transport
from engine.transport.subjects import Subjects

LISTEN_SECONDS: Final = 1.2 * HEARTBEAT_SECONDS


class Models:
    """Every model of a deployment that was heard since the start, or named."""

    def __init__(self, transport: Transport, deployment: str, named: tuple[str, ...] = ()) -> None:
        self._transport, self._watch = transport, Watch(transport, deployment, named)
        self.named = named

    @property
    def names(self) -> list[str]:
        """All of them."""
        return self._watch.names

    def find(self, model: str) -> Subjects:
        """Where to ask a model that serves. Raises ApiError: 404 unknown, 503 known and not serving."""
        if not self._transport.connected:
            raise unavailable("the broker is not reachable")
        if not self.names:
            raise unavailable("no model is heard: start decoder-run and stage-run")
        if model not in self.names:
            reason = f"the model {model!r} does not exist; served are {', '.join(self.names)}"
            raise ApiError(404, reason, code="model_not_found", param="model")
        if reason := self.outage(model):
            raise unavailable(f"{model} is not served right now: {reason}")
        return self._watch.subjects(model)

    def outage(self, model: str) -> str:
        """Why a model is not served right now, "" when it is."""
        return outage(self._watch.heard(model))

    def place(self, model: str) -> Place:
        """Where requests to a model go now."""
        _, decoders = self._watch.processes(model)
        newest = sorted((one for one in decoders if one.state == "serving"), key=lambda one: one.epoch)
        return Place(
            serving={one.pipeline: one.decoder for one in newest},
            heard=frozenset(one.decoder for one in decoders),
            reconnects=self._transport.link.reconnects,
        )

    async def served(self, call: Call) -> None:
        """Return once a call may be asked again, with its new place. It is ended from outside when that takes long."""
        while not self._transport.connected or self.outage(call.model):
            self._watch.news.clear()
            await self._watch.news.wait()
        call.place = self.place(call.model)

    async def depths(self) -> dict[str, Depths]:
        """What waits where, by model."""
        return await self._watch.depths()

    async def listen(self) -> None:
        """Observe for ever."""
        await self._watch.listen()

    async def first(self) -> None:
        """Return once what is known serves, or everybody who is there has had the time to say so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_SECONDS):
                while not self.names or any(map(self.outage, self.names)):
                    self._watch.news.clear()
                    await self._watch.news.wait()
