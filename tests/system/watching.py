"""Everything that decoders tell clients, read by somebody who misses nothing; and what processes take meanwhile."""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import psutil

from engine.contract.prompt import FinalEvent, decode_event
from engine.transport.base import Inbox

EVERY: Final = 1.0  # seconds


@dataclass(slots=True)
class Ends:
    """All events of all requests, in raw order: how often each ended, and whether its numbers have no gap."""

    finals: Counter[str] = field(default_factory=Counter[str])
    at: dict[str, float] = field(default_factory=dict[str, float])  # of the final event, time.monotonic()
    torn: list[str] = field(default_factory=list[str])
    _next: Counter[str] = field(default_factory=Counter[str])

    async def listen(self, inbox: Inbox) -> None:
        """For ever."""
        while True:
            message = await inbox.get()
            event = decode_event(message.data)
            if event.seq != self._next[event.request] or self.finals[event.request]:
                self.torn.append(f"{event.request}: event {event.seq} behind {self._next[event.request] - 1}")
            self._next[event.request] = event.seq + 1
            if isinstance(event, FinalEvent):
                self.finals[event.request] += 1
                self.at[event.request] = message.arrived


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one process at one moment."""

    at: float  # seconds since the start of the watch
    mib: float  # resident
    open_files: int
    threads: int


class Footprints:
    """Samples of several processes, once a second."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._began = time.monotonic()
        self.samples: dict[str, list[Footprint]] = {name: [] for name in pids}

    async def watch(self) -> None:
        """For ever."""
        while True:
            at = time.monotonic() - self._began
            for name, process in self._processes.items():
                with process.oneshot():
                    mib, files, threads = process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()
                self.samples[name].append(Footprint(at, mib, files, threads))
            await asyncio.sleep(EVERY)

    def between(self, name: str, first: float, last: float) -> Footprint:
        """Medians of what was sampled between two moments, given as shares of the whole time."""
        end = self.samples[name][-1].at
        found = [one for one in self.samples[name] if first * end <= one.at <= last * end]
        return Footprint(
            statistics.median(one.at for one in found),
            statistics.median(one.mib for one in found),
            int(statistics.median(one.open_files for one in found)),
            int(statistics.median(one.threads for one in found)),
        )


@dataclass(frozen=True, slots=True)
class Waited:
    """When a request was sent and when its turn came, both on one clock, in seconds."""

    sent: float
    admitted: float
    priority: int
    hurried: bool  # had a deadline: goes before others of its priority

    def overtaken_by(self, others: Sequence["Waited"], jitter: float = 0.1) -> int:
        """How many of the same priority, and in no more hurry, came later and were admitted earlier."""
        return sum(
            one.priority == self.priority and not one.hurried
            and one.sent > self.sent + jitter and one.admitted < self.admitted - jitter
            for one in others
        )  # fmt: skip
