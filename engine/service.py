"""How every process starts, stops and reports mistakes."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import orjson

from engine.contract.errors import NotServingError, ShardlineError, UsageError

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM) + (
    (signal.SIGBREAK,) if sys.platform == "win32" else ()  # what CTRL_BREAK_EVENT raises there
)

INTERRUPTED: Final = 130  # exit code after Ctrl-C


class Service(Protocol):
    """Something that runs until told to stop, then finishes what it has accepted."""

    async def run(self, stop: asyncio.Event) -> None:
        """Accept work until `stop` is set; return once accepted work is done."""
        ...


@contextmanager
def stop_on_signal() -> Generator[asyncio.Event]:
    """Set the yielded event on the first signal, interrupt on the second; restore the handlers on exit."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def request_stop(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(stop.set)

    previous = {number: signal.signal(number, request_stop) for number in STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


async def serve(*services: Service, grace: float) -> None:
    """Run services until they end or a signal comes; then give them `grace` seconds to drain."""
    with stop_on_signal() as stop:
        tasks = [asyncio.create_task(service.run(stop), name=type(service).__name__) for service in services]
        waiter = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([*tasks, waiter], return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                await asyncio.wait(tasks, timeout=grace, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in (*tasks, waiter):
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result


async def run_until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Let `work`, which never ends by itself, go on until `stop`. Raises what it raises."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        stopping.cancel()


def announce(line: str) -> None:
    """Say it on stdout, at once: for whoever has started us."""
    print(line, flush=True)  # noqa: T201


def run_process(main: Callable[[], Awaitable[None]]) -> None:
    """Run a process's coroutine; a foreseeable mistake becomes one line on stderr and an exit code."""
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_as_coroutine(main))
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except ShardlineError as error:
        fail(error)
    except BaseExceptionGroup as group:
        error = first_error(group)
        if error is None:
            raise
        fail(error)


async def _as_coroutine(main: Callable[[], Awaitable[None]]) -> None:
    await main()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop where uvloop is installed: a third less per hop (measured). Else None: asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415  not there on Windows
    except ImportError:
        return None
    return uvloop.new_event_loop


def first_error(group: BaseExceptionGroup[BaseException]) -> ShardlineError | None:
    """The foreseeable mistake in a group, if there is nothing but such in it."""
    wanted, rest = group.split(ShardlineError)
    if wanted is None or rest is not None:
        return None
    error: ShardlineError | BaseExceptionGroup[ShardlineError] = wanted
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def fail(error: ShardlineError) -> None:
    """Say what is wrong and exit: 2 for wrong usage, 3 when nothing is served, 1 for everything else."""
    print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201
    raise SystemExit(2 if isinstance(error, UsageError) else 3 if isinstance(error, NotServingError) else 1)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "at": record.created,
            "level": record.levelname,
            "name": record.name,
            "message": record.getMessage(),
        }
        if request := getattr(record, "request", ""):
            fields["request"] = str(request)
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(fields).decode()


def configure_logging(*, json: bool) -> None:
    """One line a record on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
    handler.setFormatter(_JsonFormatter() if json else text)
    logging.basicConfig(level=os.environ.get("SHARDLINE_LOG", "INFO").upper(), handlers=[handler], force=True)
    logging.getLogger("nats").setLevel(logging.CRITICAL)  # what it says, our adapter says once and better
