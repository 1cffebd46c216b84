"""What the live page shows: samples of every second, and the faults between two of them."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from itertools import zip_longest
from typing import Any, Final

from engine.contract.control import HEARTBEAT_SECONDS, DecoderHeartbeat, StageHeartbeat
from engine.gateway.answering import frame
from engine.gateway.calls import Calls
from engine.gateway.models import Models
from engine.monitoring.depth import Depths
from engine.monitoring.health import outage

HISTORY: Final = 300  # samples
MAX_FAULTS: Final = 50
MAX_PAGES: Final = 64  # open at once
Sample = dict[str, Any]


class Live:
    """Samples once a second and keeps the last ones for pages that are opened later."""

    def __init__(self, models: Models, calls: Calls, connected: Callable[[], bool]) -> None:
        self._models, self._calls, self._connected = models, calls, connected
        self._before: dict[str, Depths] = {}
        self.history: deque[Sample] = deque(maxlen=HISTORY)
        self._faults: deque[Sample] = deque(maxlen=MAX_FAULTS)
        self._news = asyncio.Condition()
        self.pages = 0  # that look
        self._ended = False

    async def run(self) -> None:
        """Sample for ever."""
        try:
            while True:
                await self._take()
                await asyncio.sleep(HEARTBEAT_SECONDS)
        finally:
            self._ended = True
            async with self._news:
                self._news.notify_all()

    async def _take(self) -> None:
        depths = await self._models.depths()
        now = time.monotonic()
        for name, after in depths.items():
            self._calls.check(name, outage(after), self._models.place(name), now)
            if before := self._before.get(name):
                self._faults += [{"at": time.time(), "model": name, "text": text} for text in faults(before, after)]
        self._before = depths
        sample: Sample = {
            "at": time.time(),
            "broker": self._connected(),
            "models": {name: {**found.as_dict(), "outage": outage(found)} for name, found in depths.items()},
            "calls": [call.as_dict(now) for call in sorted(self._calls.open, key=lambda call: call.began)],
            "faults": list(self._faults),
        }
        async with self._news:
            self.history.append(sample)
            self._news.notify_all()

    async def events(self) -> AsyncGenerator[bytes]:
        """Server-sent events: the history of the curves first, then every sample."""
        self.pages += 1
        try:
            async for event in self._events():
                yield event
        finally:
            self.pages -= 1

    async def _events(self) -> AsyncGenerator[bytes]:
        past = [
            {"at": sample["at"], "models": {n: curve(m) for n, m in sample["models"].items()}}
            for sample in self.history
        ]
        yield b"event: history\n" + frame(past)
        if self.history:
            yield frame(self.history[-1])
        while not self._ended:
            async with self._news:
                await self._news.wait()
                if self._ended:
                    return
                sample = self.history[-1]
            yield frame(sample)


def curve(model: Sample) -> Sample:
    """What is drawn over time."""
    decoder: Sample = model["decoder"] or {}
    prompts: Sample = model["prompts"] or {}
    return {
        "tokens": decoder.get("tokens_per_second", 0.0),
        "waiting": decoder.get("waiting", 0) + prompts.get("pending", 0),
        "running": decoder.get("running", 0),
    }


def faults(before: Depths, after: Depths) -> list[str]:
    """What went wrong, or right again, between two samples."""
    found: list[str] = []
    for index, (was, now) in enumerate(zip_longest(before.stages, after.stages)):
        found += _stage_faults(f"stage {index}", was, now)
    return found + _decoder_faults(before.decoder, after.decoder)


def _stage_faults(name: str, was: StageHeartbeat | None, now: StageHeartbeat | None) -> list[str]:
    if was and not now:
        return [f"{name} on {was.host} is gone"]
    if now and not was:
        return [f"{name} is served by {now.host}"]
    if was and now and was.incarnation != now.incarnation:
        return [f"{name} is served by a new worker on {now.host}"]
    if was and now and now.refused > was.refused:
        return [f"{name} refused {now.refused - was.refused} steps"]
    return []


def _decoder_faults(was: DecoderHeartbeat | None, now: DecoderHeartbeat | None) -> list[str]:
    if now is None:
        return [f"the decoder on {was.host} is gone"] if was else []
    if was is None or was.decoder != now.decoder:
        return [f"a decoder serves on {now.host}"]
    replayed = [f"epoch {now.epoch}: running answers were replayed"] if now.replays > was.replays else []
    waits = now.waits_for if now.waits_for != was.waits_for else ""
    return [*replayed, *([f"the decoder waits for {waits}"] if waits else [])]
