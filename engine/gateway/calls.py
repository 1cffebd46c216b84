"""Requests that are being answered: how many, how far, and how to end one whose pipeline is gone."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from engine.gateway.errors import ApiError, unavailable


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
    _scope: asyncio.Timeout | None = None  # while it runs

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
        self._lost: dict[str, float] = {}  # model: since when it does not serve (time.monotonic())
        self._decoders: dict[str, str] = {}  # model: which decoder served last

    def add(self, call: Call) -> None:
        """Raises ApiError when there is no place; `remove` gives it back."""
        if len(self.open) >= self._limit:
            raise ApiError(429, f"{self._limit} requests are open: try again in a few seconds", code="overloaded")
        self.open.add(call)

    def remove(self, call: Call) -> None:
        """It has ended."""
        self.open.discard(call)

    def check(self, model: str, outage: str, decoder: str, now: float) -> None:
        """End the calls that nobody will answer any more.

        `outage`: why the model does not serve, "" when it does; `decoder`: the id of the one that serves it then. What
        another decoder had taken is lost with it: requests that came by request/reply are kept nowhere else.
        """
        if outage:
            if now - self._lost.setdefault(model, now) >= self._patience:
                self._fail(model, f"the answer was given up after {self._patience:g} s: {outage}")
            return
        self._lost.pop(model, None)
        if self._decoders.setdefault(model, decoder) != decoder:
            self._decoders[model] = decoder
            self._fail(model, "the decoder that had this request is gone, another one serves now: ask again")

    def _fail(self, model: str, reason: str) -> None:
        for call in self.open:
            if call.model == model:
                call.fail(unavailable(reason))
