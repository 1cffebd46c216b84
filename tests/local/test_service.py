"""How a process ends: by a signal, by a mistake, by a bug."""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest

from engine.contract.errors import BrokerError, ManifestError, UsageError
from engine.local.processes import Processes
from engine.service import configure_logging, run_process, serve

SERVICE = """
import asyncio, sys
from engine.service import run_process, serve
class Drains:
    async def run(self, stop):
        print("up", flush=True)
        await stop.wait()
        if sys.argv[1] == "slow":
            print("draining", flush=True)
            await asyncio.Event().wait()
        print("drained", flush=True)
async def main():
    await serve(Drains(), grace=float(sys.argv[2]))
run_process(main)
"""


def raising(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def main() -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BrokerError("no broker"), 1),
        (UsageError("no such option"), 2),
        (ExceptionGroup("tasks", [ManifestError("shard missing")]), 1),
        (ExceptionGroup("tasks", [ExceptionGroup("inner", [UsageError("wrong")])]), 2),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_process(raising(error))
    assert ended.value.code == code
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("error", [ValueError("bug"), ExceptionGroup("tasks", [BrokerError("x"), ValueError("bug")])])
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        run_process(raising(error))


def test_an_interrupt_exits_with_130() -> None:
    with pytest.raises(SystemExit) as ended:
        run_process(raising(KeyboardInterrupt()))
    assert ended.value.code == 130


def test_a_service_that_fails_takes_the_others_with_it() -> None:
    class Waits:
        cancelled = False

        async def run(self, stop: asyncio.Event) -> None:
            try:
                await stop.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise

    class Fails:
        async def run(self, stop: asyncio.Event) -> None:
            raise BrokerError("lost")

    waits = Waits()
    with pytest.raises(BrokerError, match="lost"):
        asyncio.run(serve(waits, Fails(), grace=1))
    assert waits.cancelled


def stopped(tmp_path: Path, kind: str, grace: float, *signals: signal.Signals) -> tuple[int, list[str]]:
    """Exit code and output of a service that is sent signals, each once it has reacted to the one before."""

    async def run() -> tuple[int, list[str]]:
        async with asyncio.timeout(30), Processes(tmp_path) as processes:
            child = await processes.start("service", [sys.executable, "-c", SERVICE, kind, str(grace)])
            for number, line in zip(signals, ("up", "draining"), strict=False):
                await child.wait_for_line(line)
                child.signal(number)
            code = await child.wait()
            await child.stop()
            return code, list(child.lines)

    return asyncio.run(run())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows CTRL_BREAK only")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_service_finish(tmp_path: Path, number: signal.Signals) -> None:
    assert stopped(tmp_path, "quick", 20, number) == (0, ["up", "drained"])


def test_a_service_that_takes_too_long_is_cut_off(tmp_path: Path) -> None:
    assert stopped(tmp_path, "slow", 0.1, signal.SIGTERM) == (0, ["up", "draining"])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows CTRL_BREAK only")
def test_a_second_signal_does_not_wait_for_the_grace_to_end(tmp_path: Path) -> None:
    assert stopped(tmp_path, "slow", 60, signal.SIGINT, signal.SIGINT) == (130, ["up", "draining"])


def test_a_log_record_is_one_json_object_with_the_request_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logging(json=True)
        logging.getLogger("shardline.test").warning("two\nlines", extra={"request": "r1"})
    finally:
        root.handlers[:], root.level = handlers, level
    [line] = capsys.readouterr().err.splitlines()
    assert (orjson.loads(line)["message"], orjson.loads(line)["request"]) == ("two\nlines", "r1")
