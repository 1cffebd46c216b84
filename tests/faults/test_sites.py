"""A stage at another site, behind a broker of its own (leaf node); the real model: the line between them is cut."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from engine.contract.manifest import load_manifest
from engine.local.broker import broker_environment, find_server
from engine.local.pipeline import LocalPipeline
from engine.local.processes import Child, Processes
from engine.transport.nats import connect
from engine.transport.subjects import Subjects
from tests.conftest import Shards
from tests.faults.asking import HASTY, Answers, Disturbed, answers, assert_same
from tests.faults.broker import logged, mark
from tests.faults.test_cluster import free_ports
from tests.transport.proxy import Proxy, proxy_to

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]
MAIN = """\
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{home}/store", max_mem: 64MB, max_file: 1GB, domain: main }}
leafnodes {{ listen: "127.0.0.1:{line}" }}
"""
SITE = """\
listen: "127.0.0.1:{port}"
leafnodes {{ reconnect: 1, remotes: [{{ url: "nats-leaf://127.0.0.1:{line}" }}] }}
"""


async def start(processes: Processes, home: Path, name: str, text: str) -> Child:
    (home / f"{name}.conf").write_text(text)
    return await processes.start(name, [str(find_server()), "-c", str(home / f"{name}.conf")], broker_environment())


async def cut_for_a_while(line: Proxy, decoder: Child) -> None:
    """Until the decoder waits for the stage at the other end."""
    before = mark(decoder)
    line.silent = True
    line.cut()
    await logged(decoder, "waiting for stage 1", before)
    line.silent = False


async def answered_across(shards: Path, home: Path) -> Answers:
    async with asyncio.timeout(120), Processes(home / "logs") as processes:
        main, line, site = free_ports(3)
        await start(processes, home, "main", MAIN.format(port=main, line=line, home=home))
        async with proxy_to(f"nats://127.0.0.1:{line}") as cable:
            leaf = SITE.format(port=site, line=urlsplit(cable.url).port)
            log = await start(processes, home, "site", leaf)
            await logged(log, "Leafnode connection created")
            slug = load_manifest(shards).slug
            here = LocalPipeline(f"nats://127.0.0.1:{main}", slug, shards, processes)
            there = LocalPipeline(f"nats://127.0.0.1:{site}", slug, shards, processes)
            await here.start_stage(0, 2)
            await there.start_stage(1, 2)
            decoder = await here.start_decoder(*HASTY)
            await decoder.wait_for_line("ready")
            async with connect(here.url, name="test") as transport:
                halfway = asyncio.Event()
                asking = asyncio.create_task(answers(transport, Subjects("default", slug), "cut", halfway))
                await halfway.wait()
                await cut_for_a_while(cable, decoder)
                return await asking


@pytest.mark.thorough
def test_a_line_between_two_sites_that_is_cut_costs_no_text(
    shards: Shards, tmp_path: Path, disturbed: Disturbed
) -> None:
    assert_same(disturbed.calm, asyncio.run(answered_across(shards(2), tmp_path)))
