"""Who has no key, the wrong key or another authority, and brokers that are not what they should be: one clear line."""

import asyncio
import logging
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from engine.contract.errors import BrokerError
from engine.local.broker_config import BrokerPlan, write_broker
from engine.local.certificates import write_certificates
from engine.local.processes import Processes
from engine.transport.address import BrokerUrl
from engine.transport.nats import connect
from tests.security.guarded import MODEL, guarded, run, start_server, without_monitoring

pytestmark = pytest.mark.broker


async def refusal(url: str) -> str:
    """Why a connection cannot be had."""
    with pytest.raises(BrokerError) as refused:
        async with connect(url, name="test"):
            pass
    return str(refused.value)


def test_without_a_key_nobody_gets_in(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as broker:
            words = await refusal(broker.url)
            why = "it wants a key: give --credentials ('Authorization Violation')"
            assert words == f"the broker at {broker.url} refuses us: {why}"

    run(main)


def test_a_key_of_another_broker_does_not_open(tmp_path: Path) -> None:
    async def main() -> None:
        write_broker(BrokerPlan(out=tmp_path / "other", models=(MODEL,), stages=2))
        key = tmp_path / "other" / "keys" / "decoder.nk"
        async with guarded(tmp_path / "own") as broker:
            assert f"refuses us: it does not know the key {key}" in await refusal(
                BrokerUrl(broker.url, credentials=key)
            )

    run(main)


def test_a_key_that_is_taken_out_ends_its_holder(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as broker:
            plan = BrokerPlan(
                out=tmp_path, models=(MODEL,), stages=2, roles=("decoder",), port=int(broker.url.rpartition(":")[2])
            )
            with pytest.raises(BrokerError, match="refuses us: it does not know the key"):
                async with connect(broker.url_for("client"), name="test"):
                    write_broker(plan)
                    without_monitoring(tmp_path / "nats.conf")
                    broker.server.signal(signal.SIGHUP)
                    await asyncio.Event().wait()

    run(main)


def test_a_certificate_of_another_authority_is_not_believed(tmp_path: Path) -> None:
    async def main() -> None:
        write_certificates(tmp_path / "other", (), days=1)
        async with guarded(tmp_path / "own", tls=True) as broker:
            ca = tmp_path / "other" / "ca.pem"
            words = await refusal(broker.url_for("client", ca=ca))
            assert f"the certificate of the broker at {broker.url} is not of the authority in {ca}" in words
            assert "give --tls-ca" in await refusal(BrokerUrl(broker.url))
            async with connect(broker.url_for("client"), name="test") as transport:
                await transport.barrier()

    run(main)


def test_an_expired_certificate_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path, tls=True, days=0) as broker:
            words = await refusal(broker.url_for("client"))
            assert words.endswith("has expired: 'shardline broker-config' makes a new one, then reload the broker")

    run(main)


def test_a_certificate_for_another_name_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with guarded(tmp_path, tls=True) as broker:
            assert "is for other names" in await refusal(broker.url_for("client"))

    monkeypatch.setattr("engine.local.certificates.LOOPBACK", ("elsewhere.example",))
    run(main)


def test_a_broker_without_tls_gets_nothing_from_who_wants_tls(tmp_path: Path) -> None:
    async def main() -> None:
        write_certificates(tmp_path / "tls", (), days=1)
        async with guarded(tmp_path / "own") as broker:
            url = broker.url_for("client", ca=tmp_path / "tls" / "ca.pem")
            assert await refusal(url) == (
                f"the broker at {broker.url} offers no TLS although --tls-ca is given: nothing was sent to it"
            )

    run(main)


def test_a_command_says_it_in_one_line_and_fails(tmp_path: Path) -> None:
    """As a user sees it, the key named by the environment."""

    async def main() -> None:
        async with guarded(tmp_path) as broker, Processes(tmp_path / "logs") as processes:
            command = [sys.executable, "-m", "engine.cli", "prompt", "hello", "--model", "tiny", "--nats", broker.url]
            key = str(tmp_path / "keys" / "monitor.nk")
            child = await processes.start("prompt", [*command], {**os.environ, "SHARDLINE_CREDENTIALS": key})
            assert await child.wait() == 1
            [line] = child.log.read_text().splitlines()
            assert re.match(rf"error: the broker does not let the key {key} subscribe to {MODEL.root}\.tokens\.", line)

    run(main)


def test_a_certificate_that_expires_later_is_told_once_while_connecting_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with guarded(tmp_path, tls=True) as broker, connect(broker.url_for("client"), name="test") as transport:
            write_certificates(tmp_path / "tls", (), days=0)
            broker.server.kill()
            async with Processes(tmp_path / "again") as processes:
                await start_server(processes, tmp_path, "nats.conf")
                async with asyncio.timeout(20):
                    while "has expired" not in caplog.text:  # noqa: ASYNC110  only the log tells
                        await asyncio.sleep(0.05)
            write_certificates(tmp_path / "tls", (), days=1)
            async with Processes(tmp_path / "again") as processes:
                await start_server(processes, tmp_path, "nats.conf")
                async with asyncio.timeout(20):
                    while not transport.connected:  # noqa: ASYNC110  nothing tells
                        await asyncio.sleep(0.05)
        assert caplog.text.count("has expired") == 1

    with caplog.at_level(logging.ERROR, "shardline.transport"):
        run(main)
