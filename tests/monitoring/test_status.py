"""`shardline status`: what it says, and the exit codes that a script goes by."""

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager

import orjson
import pytest
from typer.testing import CliRunner

from engine.cli import app
from engine.contract.control import to_json
from engine.local.broker import embedded_broker
from engine.monitoring.cli import look, status_of
from engine.transport.memory import MemoryBroker, MemoryTransport
from engine.transport.nats import connect
from engine.transport.subjects import Subjects
from tests.decoder.local_pipeline import pipeline
from tests.decoder.test_fleet import heartbeat
from tests.monitoring.test_depth import decoder_heartbeat

SUBJECTS = Subjects("default", "m")


def test_a_whole_pipeline_serves_and_what_was_named_and_is_silent_does_not() -> None:
    async def main() -> None:
        async with pipeline(2) as here:
            transport = MemoryTransport(here.broker)
            found = await look(transport, "test", "")
            assert status_of("model", found["model"])["serving"] is True
            assert status_of("other", (await look(transport, "test", "other"))["other"])["serving"] is False

    asyncio.run(main())


def test_nothing_is_heard_where_nothing_runs() -> None:
    assert asyncio.run(look(MemoryTransport(MemoryBroker()), "default", "")) == {}


@contextmanager
def beating(*, stages: int) -> Generator[str]:
    """A broker on which a decoder and so many of two stages say that they are well; its address."""
    ready, stop = threading.Event(), asyncio.Event()
    address: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def beat() -> None:
        loops.append(asyncio.get_running_loop())
        async with embedded_broker() as url, connect(url, name="beats") as transport:
            address.append(url)
            while not stop.is_set():
                await transport.publish(SUBJECTS.decoder_heartbeat("d"), to_json(decoder_heartbeat()))
                for index in range(stages):
                    await transport.publish(SUBJECTS.stage_heartbeat(index), to_json(heartbeat(index)))
                ready.set()
                try:
                    async with asyncio.timeout(0.1):
                        await stop.wait()
                except TimeoutError:
                    continue

    thread = threading.Thread(target=lambda: asyncio.run(beat()))
    thread.start()
    try:
        assert ready.wait(20)
        yield address[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()


@pytest.mark.broker
def test_the_exit_code_is_0_while_all_serve_and_3_when_one_does_not() -> None:
    with beating(stages=2) as url:
        done = CliRunner().invoke(app, ["status", "--nats", url])
        assert (done.exit_code, "m in default: serving" in done.stdout) == (0, True), done.output
    with beating(stages=1) as url:
        done = CliRunner().invoke(app, ["status", "--nats", url, "--json"])
        assert done.exit_code == 3
        found = orjson.loads(done.stdout)
        assert (found["model"], found["serving"], found["outage"]) == ("m", False, "stage 1 is missing")
        assert "not serving, m: stage 1 is missing" in done.stderr
        assert CliRunner().invoke(app, ["status", "--nats", url, "--deployment", "other"]).exit_code == 3


def test_without_a_broker_it_is_1_and_with_a_wrong_option_2() -> None:
    done = CliRunner().invoke(app, ["status", "--nats", "nats://127.0.0.1:1"])
    assert (done.exit_code, "no broker" in done.stderr) == (1, True)
    assert CliRunner().invoke(app, ["status", "--nats", "nats://127.0.0.1:0"]).exit_code == 2


def test_top_wants_a_terminal() -> None:
    done = CliRunner().invoke(app, ["top"])
    assert (done.exit_code, "queue-depth --watch --json" in done.stderr) == (2, True)
