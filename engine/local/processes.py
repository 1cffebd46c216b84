"""Child processes of a one-machine pipeline: started, listened to, and never left behind."""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

STOP_SECONDS: Final = 10.0  # to drain, after SIGTERM
KEPT_LINES: Final = 1000  # of a child's stdout, the newest
LINE_BYTES: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1


class Child:
    """One running child; its stdout comes line by line, its stderr goes to a log file."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self.log = name, log
        self._process = process
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._news = asyncio.Condition()
        self._silent = False  # nothing more will come from it
        self._reader = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.returncode

    async def wait_for_line(self, beginning: str) -> str:
        """The first line of its stdout that begins so. Raises ChildProcessError when it ends before."""
        async with self._news:
            while True:
                for line in self.lines:
                    if line.startswith(beginning):
                        return line
                if self._silent:
                    raise ChildProcessError(f"{self.name} ended with code {await self.wait()}: {self.last_words()}")
                await self._news.wait()

    async def wait(self) -> int:
        """Its exit code."""
        return await self._process.wait()

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"

    async def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Ask it to end; after `seconds` make it, and whatever it has started. Its exit code."""
        if self.returncode is None:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._process.wait()
        self.kill()
        code = await self._process.wait()
        await self._reader
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; on Windows the only one that can be caught is CTRL_BREAK."""
        with contextlib.suppress(ProcessLookupError):
            if sys.platform == "win32":
                self._process.send_signal(signal.CTRL_BREAK_EVENT)
            else:
                self._process.send_signal(number)

    def kill(self) -> None:
        """End it now, as a power cut would, and whatever it has started (not on Windows).

        A grandchild that lives on would hold our pipes open, and asyncio waits for those too. Once nobody holds them
        nothing is left to end, and the process id may be somebody else's.
        """
        if self.returncode is not None and self._silent:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: PermissionError when all are gone
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self.pid, signal.SIGKILL)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:
                continue  # longer than LINE_BYTES: left out
            if not line:
                break
            async with self._news:
                self.lines.append(line.decode(errors="replace").rstrip())
                self._news.notify_all()
        async with self._news:
            self._silent = True
            self._news.notify_all()


class Processes:
    """Starts children in their own process groups; leaving the context ends them, the last started first.

    On Linux the kernel ends them even if this process is killed. On Windows and macOS a killed parent leaves them.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []

    @property
    def children(self) -> list[Child]:
        """All that were started, in that order."""
        return list(self._children)

    async def __aenter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopping = asyncio.create_task(self._stop_all())
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:  # asked again, by somebody impatient
            for child in self._children:
                child.kill()
            await stopping
            raise

    async def _stop_all(self) -> None:
        for child in reversed(self._children):
            await child.stop()
        self._children.clear()

    async def start(self, name: str, command: list[str], environment: Mapping[str, str] | None = None) -> Child:
        """Start a child; stderr goes to `<logs>/<name>.log`."""
        path = self._logs / f"{name}.log"
        with path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                limit=LINE_BYTES,
                env=dict(os.environ if environment is None else environment),
                **_own_group(),
            )
        child = Child(name, process, path)
        self._children.append(child)
        return child


def _own_group() -> dict[str, Any]:
    """A Ctrl-C at the terminal reaches the parent only; the children end in order."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True, "preexec_fn": _end_with_parent()}


def _end_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # loaded before the fork: a child may only call what is there
    parent = os.getpid()

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)  # the parent went away before the call

    return end_with_parent
