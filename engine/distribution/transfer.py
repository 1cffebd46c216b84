"""What sending and fetching have in common: several chunks at once, a limit, patience with a lost broker."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from engine.contract.errors import TransferError
from engine.distribution.progress import Progress, Rate
from engine.service import first_error

WINDOW: Final = 8  # chunks under way at once
PATIENCE_SECONDS: Final = 60.0  # without an answer, before a transfer gives up
PAUSE_SECONDS: Final = 0.25
REPORT_SECONDS: Final = 2.0
log = logging.getLogger("shardline.files")
T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(kw_only=True)
class Mover:
    """How one transfer goes; what it says goes to `say`."""

    say: Say
    rate: int = 0  # bytes per second; 0: as fast as it goes
    patience: float = PATIENCE_SECONDS
    progress: Progress = field(default_factory=lambda: Progress(0, time.monotonic))

    def __post_init__(self) -> None:
        self._rate = Rate(self.rate, time.monotonic)
        self._reported, self._waiting = time.monotonic(), False

    def expect(self, total: int) -> None:
        """That many bytes are to be moved, those that are there already counted in."""
        self.progress = Progress(total, time.monotonic)

    def moved(self, count: int, what: str) -> None:
        """Bytes have arrived."""
        self.progress.add(count)
        if time.monotonic() - self._reported >= REPORT_SECONDS:
            self._reported = time.monotonic()
            self.say(f"{what}: {self.progress.line()}")

    async def pace(self, count: int) -> None:
        """Wait until that many bytes may go."""
        await asyncio.sleep(self._rate.delay(count))

    async def ask(self, call: Callable[[], Awaitable[T]]) -> T:
        """A call to the broker, again while its link is lost. Raises TransferError when that takes too long."""
        began = time.monotonic()
        while True:
            try:
                answer = await call()
            except ConnectionError as error:
                if time.monotonic() - began > self.patience:
                    raise TransferError(
                        f"no answer from the broker for {self.patience:.0f} s ({error}): what has been moved stays, "
                        "do it again to go on from there"
                    ) from error
                self._wait(error)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                self._waiting = False
                return answer

    def _wait(self, error: ConnectionError) -> None:
        if not self._waiting:
            self._waiting = True
            log.warning("%s: trying again", error)


async def side_by_side(items: Iterable[T], work: Callable[[T], Awaitable[None]], *, width: int = WINDOW) -> None:
    """Work on items in order, several at once. Raises the first foreseeable error."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(width):
                tasks.create_task(worker())
    except BaseExceptionGroup as group:
        error = first_error(group)
        if error is None:
            raise
        raise error from None
