"""The whole examination, of this machine."""

import asyncio
import os
import socket
import subprocess
import sys
from typing import Any

import orjson
import pytest

from engine.local.broker import embedded_broker
from engine.transport.nats import connect

pytestmark = pytest.mark.broker


def examined(url: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of `shardline doctor`."""
    command = [sys.executable, "-m", "engine.cli", "doctor", "--json", "--nats", url]
    done = subprocess.run(command, env=os.environ, capture_output=True, timeout=60, check=False)
    return done.returncode, orjson.loads(done.stdout)


def words(report: dict[str, Any], area: str) -> dict[str, str]:
    return {finding["what"]: finding["level"] for finding in report["findings"] if finding["area"] == area}


def test_with_a_broker_there_is_nothing_to_mend() -> None:
    async def main() -> None:
        async with asyncio.timeout(90), embedded_broker() as url:
            code, report = await asyncio.to_thread(examined, url)
            assert (code, report["good"]) == (0, True)
            assert "messages of 8.0 MiB at most" in words(report, "broker")
            assert list(words(report, "clock").values()) == ["ok"]
            assert any(what.startswith("CPU: ") for what in words(report, "devices"))

    asyncio.run(main())


def test_without_a_broker_the_rest_is_told_and_the_exit_code_says_so() -> None:
    with socket.socket() as held:  # bound and not listening: nobody answers, and nobody else gets it
        held.bind(("127.0.0.1", 0))
        code, report = examined(f"nats://127.0.0.1:{held.getsockname()[1]}")
    assert (code, report["good"]) == (1, False)
    problems = [finding for finding in report["findings"] if finding["level"] == "problem"]
    assert [(finding["area"], bool(finding["todo"])) for finding in problems] == [("broker", True)]
    assert words(report, "devices")


def test_a_broker_s_clock_on_this_machine_is_ours() -> None:
    async def main() -> None:
        async with asyncio.timeout(30), embedded_broker() as url, connect(url, name="test") as transport:
            facts = await transport.facts()
            assert facts.clock_offset is not None
            assert abs(facts.clock_offset) < 0.25
            assert facts.jetstream
            assert facts.version.startswith("2.")

    asyncio.run(main())
