"""Three nats-servers on loopback, every stream on all of them; the real model: members are lost."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import nats
import pytest

from engine.client.client import Client
from engine.contract.errors import BrokerError
from engine.contract.manifest import load_manifest
from engine.contract.prompt import Event
from engine.local.broker import broker_environment, find_server
from engine.local.pipeline import LocalPipeline
from engine.local.processes import Child, Processes
from engine.transport.nats import connect
from engine.transport.subjects import Subjects
from tests.conftest import Shards
from tests.faults.asking import BEFORE, TOKENS, Disturbed, assert_same
from tests.system.prompts import PROMPTS

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]
CONFIG = """\
server_name: n{number}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{home}/store-{number}", max_mem: 64MB, max_file: 1GB }}
cluster {{ name: c, listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


async def start_cluster(processes: Processes, home: Path) -> tuple[list[str], list[Child]]:
    ports = free_ports(6)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports[3:])
    members: list[Child] = []
    for number in range(3):
        config = home / f"n{number}.conf"
        config.write_text(
            CONFIG.format(number=number, port=ports[number], route=ports[3 + number], routes=routes, home=home)
        )
        command = [str(find_server()), "-c", str(config)]
        members.append(await processes.start(f"nats-{number}", command, broker_environment()))
    return [f"nats://127.0.0.1:{port}" for port in ports[:3]], members


async def on_all_members(urls: Sequence[str], subjects: Subjects) -> str:
    """Streams and lease of a model on three members, as an operator sets them; who leads the queue of prompts."""
    client = await nats.connect(list(urls))
    js = client.jetstream()
    streams = (subjects.prompt_stream, subjects.dead_stream, subjects.event_stream, f"KV_{subjects.lease_bucket}")
    for name in streams:
        config = (await js.stream_info(name)).config
        config.num_replicas = 3
        await js.update_stream(config)
    while True:
        found = [(await js.stream_info(name)).cluster for name in streams]
        if all(one and len(one.replicas or []) == 2 and all(r.current for r in one.replicas or []) for one in found):
            leader = (await js.stream_info(subjects.prompt_stream)).cluster
            await client.close()
            assert leader is not None and leader.leader
            return leader.leader
        await asyncio.sleep(0.1)  # replicas catch up in silence


@pytest.mark.thorough
def test_a_cluster_that_loses_its_leader_and_then_its_quorum_costs_no_text(
    shards: Shards, tmp_path: Path, disturbed: Disturbed
) -> None:
    async def main() -> list[list[Event]]:
        async with AsyncExitStack() as stack, asyncio.timeout(200):
            processes = await stack.enter_async_context(Processes(tmp_path / "logs"))
            urls, members = await start_cluster(processes, tmp_path)
            url = ",".join(urls)
            manifest = load_manifest(shards(2))
            subjects = Subjects("default", manifest.slug)
            pipeline = LocalPipeline(url, manifest.slug, shards(2), processes)
            pipeline.stages = [await pipeline.start_stage(index, 2) for index in range(2)]
            decoder = await pipeline.start_decoder()
            await decoder.wait_for_line("ready")
            leader = int((await on_all_members(urls, subjects)).removeprefix("n"))
            transport = await stack.enter_async_context(connect(url, name="test"))
            client = Client(transport, subjects)
            halfway = asyncio.Event()
            asking = asyncio.create_task(ask(client, "leader", halfway))
            await halfway.wait()
            members[leader].kill()
            told = [await asking]
            other = (leader + 1) % 3
            members[other].kill()
            async with asyncio.timeout(30):
                with pytest.raises(BrokerError):
                    await ask(client, "no-quorum", asyncio.Event())
            for number in (leader, other):
                command = [str(find_server()), "-c", str(tmp_path / f"n{number}.conf")]
                await processes.start(f"nats-{number}", command, broker_environment())
            while len(told) < 2:
                try:
                    told.append(await ask(client, f"again-{asyncio.get_running_loop().time():.0f}", asyncio.Event()))
                except BrokerError:
                    await asyncio.sleep(0.5)  # the members find each other
            return told

    told = asyncio.run(main())
    assert_same([disturbed.calm[0]] * 2, told)


async def ask(client: Client, request: str, halfway: asyncio.Event) -> list[Event]:
    events: list[Event] = []
    fields = {"id": request, "prompt": PROMPTS[0], "max_tokens": TOKENS, "ignore_eos": True}
    async for event in client.generate(**fields):
        events.append(event)
        if len(events) == BEFORE:
            halfway.set()
    return events
