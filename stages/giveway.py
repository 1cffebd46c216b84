"""Looks at the machine every second and tells the worker when its owner needs it."""

import asyncio
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, Protocol

import psutil

from stages.owner import CpuTimes, Usage, Verdict, YieldPolicy, judge, others_share

LOOK_SECONDS: Final = 1.0
BUSY: Final = ("user", "nice", "system", "irq", "softirq", "interrupt", "dpc")  # not on every system all of them


class Yielding(Protocol):
    """Whoever gives way."""

    def give_way(self, reason: str) -> None:
        """Let others take over; "" ends it."""
        ...

    def neighbours(self) -> Collection[int]:
        """Process ids that do not count as others."""
        ...


class GiveWay:
    """A service beside the worker's. `look` blocks for less than a millisecond."""

    def __init__(
        self,
        worker: Yielding,
        policy: YieldPolicy,
        look: Callable[[Collection[int]], Usage],
        *,
        seconds: float = LOOK_SECONDS,
    ) -> None:
        self._worker, self._policy, self._look, self._seconds = worker, policy, look, seconds

    async def run(self, stop: asyncio.Event) -> None:
        """Look until `stop`."""
        verdict = Verdict()
        while not stop.is_set():
            found = judge(verdict, self._look(self._worker.neighbours()), self._policy, time.monotonic())
            if found.reason != verdict.reason:
                self._worker.give_way(found.reason)
            verdict = found
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await stop.wait()


class Sensors:
    """The machine as psutil sees it."""

    def __init__(self) -> None:
        self._cores = psutil.cpu_count() or 1
        self._before = _cpu_times({os.getpid()})

    def look(self, ours: Collection[int]) -> Usage:
        """Usage since the last look; this process and those named are not others."""
        now = _cpu_times({os.getpid(), *ours})
        share = others_share(self._before, now, self._cores)
        self._before = now
        return Usage(others=share, battery=_battery())


def _cpu_times(ours: Collection[int]) -> CpuTimes:
    everybody = psutil.cpu_times()
    used: dict[int, float] = {}
    for pid in ours:
        with suppress(psutil.Error):  # it has ended, or belongs to a container on this host
            times = psutil.Process(pid).cpu_times()
            used[pid] = times.user + times.system
    return CpuTimes(time.monotonic(), sum(getattr(everybody, name, 0.0) for name in BUSY), used)


def _battery() -> float | None:
    sensor = getattr(psutil, "sensors_battery", None)  # not on every system
    battery = sensor() if sensor else None
    return None if battery is None or battery.power_plugged is not False else battery.percent / 100
