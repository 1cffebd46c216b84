"""Requests that are being answered: how many, how far, and how to end one whose pipeline is gone."""

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from engine.contract.prompt import Event
from engine.gateway.errors import ApiError, unavailable


class LostError(Exception):
    """Nobody answers a request any more: ask again."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where requests to a model go at one moment."""

    serving: Mapping[str, str]  # decoder by pipeline
    heard: Collection[str]  # decoders, whatever they do
    reconnects: int  # of the gateway's link: with it events may be lost

    def lost(self, now: "Place") -> str:
        """Why what was asked here may not be answered any more, "" while it will be."""
        if now.reconnects != self.reconnects:
            return "the link to the broker was lost"
        for pipeline, decoder in self.serving.items():
            if decoder not in now.heard or now.serving.get(pipeline, decoder) != decoder:
                return f"decoder {decoder} is gone"
        return ""


@dataclass(slots=True, eq=False)
class Call:
    """One open request."""

    model: str
    endpoint: str
    key: str  # whose API key, "" without
    id: str = field(default_factory=lambda: uuid4().hex)
    began: float = field(default_factory=time.monotonic)  # seconds
    tokens: int = 0
    failure: ApiError | None = None
    place: Place | None = None  # where it was asked last
    asked_again: int = 0
    _scope: asyncio.Timeout | None = None  # while it runs
    _waiting: asyncio.Timeout | None = None  # while it waits for an event
    _lost: str = ""

    def lose(self, reason: str) -> None:
        """Whoever had it is gone: let it be asked again."""
        self._lost, self.place = reason, None
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def next(self, events: AsyncGenerator[Event]) -> Event | None:
        """The next event, None behind the last one. Raises LostError after `lose`."""
        try:
            if not self._lost:
                async with asyncio.timeout(None) as self._waiting:
                    return await anext(events, None)
        except TimeoutError:
            if not self._lost:
                raise
        finally:
            self._waiting = None
        reason, self._lost = self._lost, ""
        self.asked_again += 1
        raise LostError(reason)

    def fail(self, error: ApiError) -> None:
        """End it from outside with this error."""
        if self.failure is None:
            self.failure = error
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """What may be ended by `fail`. Raises its ApiError."""
        try:
            async with asyncio.timeout(None) as self._scope:
                yield
        except TimeoutError:
            if self.failure is None:
                raise
            raise self.failure from None
        finally:
            self._scope = None

    def as_dict(self, now: float) -> dict[str, Any]:
        """For the live page."""
        named = {"id": self.id[:8], "model": self.model, "endpoint": self.endpoint, "key": self.key}
        return {**named, "tokens": self.tokens, "seconds": round(now - self.began, 1)}


class Calls:
    """All open requests, bounded."""

    def __init__(self, limit: int, patience: float) -> None:
        self._limit, self._patience = limit, patience
        self.open: set[Call] = set()
        self.asked_again = 0  # times, of those that have ended
        self._lost: dict[str, float] = {}  # model: since when it does not serve (time.monotonic())

    def add(self, call: Call) -> None:
        """Raises ApiError when there is no place; `remove` gives it back."""
        if len(self.open) >= self._limit:
            raise ApiError(429, f"{self._limit} requests are open: try again in a few seconds", code="overloaded")
        self.open.add(call)

    def remove(self, call: Call) -> None:
        """It has ended."""
        self.open.discard(call)
        self.asked_again += call.asked_again

    def check(self, model: str, outage: str, place: Place, now: float) -> None:
        """End the calls that nobody will answer any more, have those asked again that others would.

        `outage`: why the model does not serve, "" when it does; `place`: where requests go then. What a lost decoder
        had taken is lost with it: requests that came by request/reply are kept nowhere else.
        """
        if outage:
            if now - self._lost.setdefault(model, now) >= self._patience:
                self._fail(model, f"the answer was given up after {self._patience:g} s: {outage}")
            return
        self._lost.pop(model, None)
        for call in self.open:
            if call.model == model and call.place and (reason := call.place.lost(place)):
                call.lose(reason)

    def _fail(self, model: str, reason: str) -> None:
        for call in self.open:
            if call.model == model:
                call.fail(unavailable(reason))
