"""Real processes watched and talked to from a real terminal: `top`, `chat`, `status`, and one scrape for all."""

import asyncio
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import orjson
import pytest

from engine.client.client import Client
from engine.transport.nats import NatsTransport
from engine.transport.subjects import Subjects
from tests.conftest import Shards
from tests.system.running import Running, running

pytestmark = [
    pytest.mark.model,
    pytest.mark.broker,
    pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals there"),
]
SECONDS = 60.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def here(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    with running(shards(2), tmp_path_factory.mktemp("terminal"), stage_options=("--metrics", "0")) as started:
        yield started


class Terminal:
    """A command on a pseudo-terminal: what it shows, and keys for it."""

    def __init__(self, process: "subprocess.Popen[bytes]", side: int) -> None:
        self.process, self._side, self._shown = process, side, ""

    def until(self, text: str) -> str:
        """Everything shown up to this text, which is taken away."""
        deadline = time.monotonic() + SECONDS
        while text not in (clear := ESCAPES.sub("", self._shown)):
            ready, _, _ = select.select([self._side], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{text!r} is not shown, but {clear!r}"
            self._shown += os.read(self._side, 1 << 16).decode(errors="replace")
        before, _, self._shown = clear.partition(text)
        return before

    def keys(self, text: str) -> None:
        os.write(self._side, text.encode())

    def ended(self) -> int:
        return self.process.wait(SECONDS)


@contextmanager
def terminal(*words: str) -> Generator[Terminal]:
    import pty  # noqa: PLC0415  not there on Windows

    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "50"}
    with subprocess.Popen(
        [sys.executable, "-m", "engine.cli", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
        preexec_fn=_own_terminal,  # noqa: PLW1509  one system call
    ) as process:
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            os.close(ours)


def _own_terminal() -> None:
    """Ctrl-C typed there becomes a signal for the process."""
    import fcntl  # noqa: PLC0415
    import termios  # noqa: PLC0415

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def run(words: Sequence[str], **more: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "engine.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, **more)  # type: ignore[call-overload]


def test_a_chat_remembers_and_ctrl_c_stops_the_answer_and_not_the_chat(here: Running) -> None:
    with terminal("chat", "--nats", here.pipeline.url, "--max-tokens", "400") as chat:
        chat.until("> ")
        chat.keys("My name is Ada. Write a very long story about the sea.\n")
        chat.until("sea.")
        chat.until(" ")
        chat.keys("\x03")
        chat.until("(stopped)")
        chat.until("> ")
        chat.keys("/reset\n")
        chat.until("(a new conversation)")
        chat.until("> ")
        chat.keys("\x03")
        chat.until("/reset begins anew")
        chat.until("> ")
        chat.keys("/exit\n")
        assert chat.ended() == 0


def test_lines_of_standard_input_are_turns(here: Running) -> None:
    words = ["chat", "--nats", here.pipeline.url, "--max-tokens", "5"]
    done = run(words, input="Say one.\n\nSay two.\n")
    assert (done.returncode, len(done.stdout.splitlines()) >= 2) == (0, True), done.stderr


def test_top_shows_stages_and_an_open_request_and_ends_with_ctrl_c(here: Running) -> None:
    long = {"max_tokens": 4000, "ignore_eos": True}

    async def while_answering(transport: NatsTransport, subjects: Subjects) -> None:
        async def ask() -> None:
            async for _ in Client(transport, subjects).generate(id="watched-one", prompt="Tell", **long):
                pass

        asking = asyncio.create_task(ask())
        await asyncio.to_thread(watch)
        asking.cancel()
        await Client(transport, subjects).cancel("watched-one")

    def watch() -> None:
        with terminal("top", "--nats", here.pipeline.url) as top:
            top.until("serving")
            top.until("tokens/s")
            top.until("watched-")
            top.keys("\x03")
            assert top.ended() == 0

    here.do(while_answering, seconds=SECONDS)


def test_one_scrape_knows_every_process_and_a_stage_knows_itself(here: Running, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "engine.monitoring.monitor_cli", "--nats", here.pipeline.url, "--metrics", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as monitor:
        assert monitor.stdout
        url = monitor.stdout.readline().split()[-1]
        deadline = time.monotonic() + SECONDS
        up = re.compile(r'shardline_pipeline_up\{pipeline="default/[^"]+"\} 1\.0')
        while (text := read(url)).count("shardline_stage_steps_total{") < 2 or not up.search(text):
            assert time.monotonic() < deadline, text
        monitor.send_signal(signal.SIGTERM)
        assert monitor.wait(SECONDS) == 0
    assert "shardline_decoder_epoch{" in text
    [line] = [line for line in here.pipeline.stages[0].lines if line.startswith("metrics at ")]
    own = read(line.split()[-1])
    assert 'stage="0"' in own and "process_resident_memory_bytes" in own


def test_status_is_one_object_for_a_script(here: Running) -> None:
    done = run(["status", "--nats", here.pipeline.url, "--json"])
    found = orjson.loads(done.stdout)
    assert (done.returncode, found["serving"], len(found["stages"])) == (0, True, 2)


def read(url: str) -> str:
    with urlopen(url, timeout=10) as reply:
        return reply.read().decode()
