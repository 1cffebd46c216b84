"""The processes of a pipeline, started again whenever one ends."""

import asyncio
import re
import signal
from collections import Counter
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from engine.local.broker import start_broker
from engine.local.pipeline import LocalPipeline
from engine.local.processes import Child

RESTART_SECONDS = 0.5  # between an end and the next start, as a supervisor waits
LOST = re.compile(r"epoch \d+ lost.*replaying (\d+) requests, (\d+) tokens")
RESUMED = re.compile(r"request \S+ goes on behind event")


class Fleet:
    """Supervises what a pipeline has started."""

    def __init__(self, pipeline: LocalPipeline, decoder_options: tuple[str, ...]) -> None:
        self._pipeline, self._options = pipeline, decoder_options
        self.children: dict[str, Child] = {child.name: child for child in pipeline.processes.children}
        self.names = sorted(self.children)
        self.exits: Counter[tuple[str, int]] = Counter()
        self._restarted = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._supervise(name)) for name in self.names]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def end(self, name: str, number: signal.Signals) -> None:
        """Signal a process and return once it has a successor that is ready."""
        old = self.children[name]
        old.signal(number)
        async with self._restarted:
            await self._restarted.wait_for(lambda: self.children[name] is not old)
        if name != "nats-server":
            await self.children[name].wait_for_line("ready")

    async def _supervise(self, name: str) -> None:
        while True:
            self.exits[name, await self.children[name].wait()] += 1
            await asyncio.sleep(RESTART_SECONDS)
            child = await self._start(name)
            async with self._restarted:
                self.children[name] = child
                self._restarted.notify_all()

    async def _start(self, name: str) -> Child:
        pipeline = self._pipeline
        if name == "nats-server":
            old = self.children[name]
            await start_broker(pipeline.processes, old.log.parent.parent, urlsplit(pipeline.url).port or 0)
            return pipeline.processes.children[-1]
        if name == "decoder":
            return await pipeline.start_decoder(*self._options)
        return await pipeline.start_stage(int(name.removeprefix("stage-")), len(pipeline.stages))

    def replayed(self) -> tuple[int, int, int]:
        """Epochs lost, tokens sent again because of it, answers that another decoder went on with."""
        log = self.children["decoder"].log.read_text(errors="replace")
        lost = list(LOST.finditer(log))
        return len(lost), sum(int(match[2]) for match in lost), len(RESUMED.findall(log))
