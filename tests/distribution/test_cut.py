"""Transfers that are cut: the link, the broker, the process; and two processes that want the same."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.contract.errors import BrokerError
from engine.distribution.models import existing_store
from engine.distribution.pieces import Need
from engine.distribution.pull import Target, pull
from engine.distribution.push import push
from engine.distribution.transfer import Mover
from engine.local import broker as broker_module
from engine.local.broker import embedded_broker
from engine.transport.nats import NatsTransport, connect
from tests.distribution.splits import WEIGHTS, files_in, make_split
from tests.transport.proxy import Proxy, proxy_to

pytestmark = pytest.mark.broker


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test

    asyncio.run(bounded())


def reconnects(transport: NatsTransport) -> int:
    return transport._client.stats["reconnects"]  # pyright: ignore[reportPrivateUsage]


def cut_after(count: int, proxy: Proxy) -> Callable[[bytes], bytes]:
    """Lets that many bytes through, then ends the connection; once."""
    left = [count]

    def edit(chunk: bytes) -> bytes:
        if left[0] > 0 >= left[0] - len(chunk):
            proxy.cut()
        left[0] -= len(chunk)
        return chunk

    return edit


def test_a_push_goes_on_when_its_link_is_cut(tmp_path: Path) -> None:
    async def test() -> None:
        manifest = make_split(tmp_path / "split")
        async with embedded_broker() as url, proxy_to(url) as proxy, connect(proxy.url, name="test") as transport:
            proxy.to_broker = cut_after(WEIGHTS, proxy)
            await push(transport, "default", tmp_path / "split", Mover(say=print))
            assert reconnects(transport) == 1
            store = await existing_store(transport, "default", manifest.slug)
            folder = await pull(store, "model", Need(), Target(cache=tmp_path / "cache"), Mover(say=print))
            assert files_in(folder) == files_in(tmp_path / "split")

    run(test())


def test_a_pull_goes_on_when_its_link_is_cut_and_fetches_nothing_twice(tmp_path: Path) -> None:
    async def test() -> None:
        make_split(tmp_path / "split")
        async with embedded_broker() as url, proxy_to(url) as proxy, connect(proxy.url, name="test") as transport:
            await push(transport, "default", tmp_path / "split", Mover(say=print))
            store, mover = await existing_store(transport, "default", "model"), Mover(say=print)
            proxy.to_client = cut_after(WEIGHTS, proxy)
            folder = await pull(store, "model", Need(), Target(cache=tmp_path / "cache"), mover)
            assert reconnects(transport) == 1
            assert mover.progress.moved == mover.progress.total
            assert files_in(folder) == files_in(tmp_path / "split")

    run(test())


def test_a_broker_without_room_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = broker_module._CONFIG.replace("max_file: 1GB", "max_file: 2MB")  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(broker_module, "_CONFIG", small)

    async def test() -> None:
        make_split(tmp_path / "split")
        async with embedded_broker() as url, connect(url, name="test") as transport:
            with pytest.raises(BrokerError, match=r"no room for these files .* raise max_file"):
                await push(transport, "default", tmp_path / "split", Mover(say=print))

    run(test())


async def start_pull(url: str, cache: Path, out: Path, *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "export_tools.cli", "pull", "--nats", url, "--out", str(out), "--json", *options),
        env={**os.environ, "SHARDLINE_CACHE": str(cache)},
        stdout=asyncio.subprocess.PIPE,
    )


async def report(process: asyncio.subprocess.Process) -> dict[str, Any]:
    out, _ = await process.communicate()
    assert process.returncode == 0
    return orjson.loads(out)


def test_a_pull_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    async def test() -> None:
        manifest = make_split(tmp_path / "split")
        journal = tmp_path / "cache" / "files" / manifest.stages[0].files[1].sha256 / "done"
        async with embedded_broker() as url, connect(url, name="test") as transport:
            await push(transport, "default", tmp_path / "split", Mover(say=print))
            process = await start_pull(url, tmp_path / "cache", tmp_path / "here", "--limit-rate", "1MB")
            while not (journal.exists() and journal.read_text()):
                assert process.returncode is None
                await asyncio.sleep(0.01)
            process.kill()
            await process.wait()
            found = await report(await start_pull(url, tmp_path / "cache", tmp_path / "here"))
            assert 0 < found["fetched"] < found["bytes"]
            assert files_in(tmp_path / "here") == files_in(tmp_path / "split")

    run(test())


def test_two_processes_on_one_machine_fetch_each_file_once(tmp_path: Path) -> None:
    async def test() -> None:
        make_split(tmp_path / "split")
        async with embedded_broker() as url, connect(url, name="test") as transport:
            await push(transport, "default", tmp_path / "split", Mover(say=print))
            outs = [tmp_path / "one", tmp_path / "two"]
            both = [await start_pull(url, tmp_path / "cache", out, "--limit-rate", "4MB") for out in outs]
            found = [await report(process) for process in both]
            assert sum(one["fetched"] for one in found) == found[0]["bytes"]
            assert files_in(outs[0]) == files_in(outs[1]) == files_in(tmp_path / "split")

    run(test())
