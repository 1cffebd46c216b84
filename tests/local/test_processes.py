"""Children start, speak, end in order and never outlive their parent."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from engine.local.processes import LINE_BYTES, Child, Processes
from engine.service import loop_factory

Run = Callable[[Coroutine[Any, Any, None]], None]
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""
TELLS_WHEN_STOPPED = """
import signal, sys, time
def stop(*_):
    print(sys.argv[1], file=open(sys.argv[2], "a"))
    sys.exit(3)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
time.sleep(60)
"""
PARENT = """
import asyncio, os, sys
from pathlib import Path
from engine.local.processes import Processes
async def main():
    async with Processes(Path(sys.argv[1])) as processes:
        child = await processes.start("child", [sys.executable, "-c", "import time; time.sleep(60)"])
        print(child.pid, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture(params=[None, loop_factory()], ids=["asyncio", "process"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on each kind of event loop, for half a minute at most."""

    def run_it(test: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await test

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(bounded())

    return run_it


async def python(processes: Processes, code: str, *arguments: str) -> Child:
    return await processes.start("child", [sys.executable, "-c", code, *arguments])


def test_a_line_that_was_said_before_is_found(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with Processes(tmp_path) as processes:
            child = await python(processes, "print('first'); print('ready 1'); print('last')")
            assert await child.wait_for_line("last") == "last"
            assert await child.wait_for_line("ready") == "ready 1"

    run(test())


def test_a_child_that_ends_too_early_is_quoted(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with Processes(tmp_path) as processes:
            child = await python(processes, "import sys; sys.exit('no such model')")
            with pytest.raises(ChildProcessError, match="child ended with code 1: no such model"):
                await child.wait_for_line("ready")

    run(test())


def test_the_last_started_is_stopped_first(run: Run, tmp_path: Path) -> None:
    order = tmp_path / "order"

    async def test() -> None:
        async with Processes(tmp_path) as processes:
            for name in ("a", "b", "c"):
                await (await python(processes, TELLS_WHEN_STOPPED, name, str(order))).wait_for_line("up")

    run(test())
    assert order.read_text().split() == ["c", "b", "a"]


def test_a_child_that_does_not_stop_is_killed(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with Processes(tmp_path) as processes:
            child = await python(processes, STUBBORN)
            await child.wait_for_line("up")
            assert await child.stop(0.1) == -signal.SIGKILL

    run(test())


def test_somebody_impatient_need_not_wait_for_a_stubborn_child(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        up = asyncio.Event()

        async def use() -> None:
            async with Processes(tmp_path) as processes:
                await (await python(processes, STUBBORN)).wait_for_line("up")
                up.set()
                await asyncio.Event().wait()

        using = asyncio.create_task(use())
        await up.wait()
        async with asyncio.timeout(8):  # the child has 10 s to stop
            using.cancel()
            await asyncio.sleep(0)
            using.cancel()
            await asyncio.wait({using})

    run(test())


def test_a_grandchild_that_holds_the_pipe_open_is_ended_too(run: Run, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print('up')"
    )

    async def test() -> None:
        async with Processes(tmp_path) as processes:
            child = await python(processes, code)
            await child.wait_for_line("up")
            await child.stop(0.1)

    run(test())


def test_a_line_without_end_does_not_stop_the_reading(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with Processes(tmp_path) as processes:
            child = await python(processes, f"print('x' * {3 * LINE_BYTES}); print('ready')")
            assert await child.wait_for_line("ready") == "ready"

    run(test())


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the children of a killed parent")
def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    async def test() -> None:
        async with asyncio.timeout(30):
            parent = await asyncio.create_subprocess_exec(
                sys.executable, "-c", PARENT, str(tmp_path), stdout=asyncio.subprocess.PIPE
            )
            assert parent.stdout is not None
            child = os.pidfd_open(int(await parent.stdout.readline()))
            ended = asyncio.Event()
            asyncio.get_running_loop().add_reader(child, ended.set)
            parent.kill()
            await parent.wait()
            await ended.wait()
            asyncio.get_running_loop().remove_reader(child)
            os.close(child)

    asyncio.run(test())
