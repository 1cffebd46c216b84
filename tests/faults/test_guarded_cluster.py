"""Three brokers that are one, as `shardline broker-config --cluster` sets them up: one is killed under load."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.client.client import Client
from engine.contract.errors import BrokerError
from engine.contract.manifest import load_manifest
from engine.contract.prompt import FinalEvent, TokenEvent
from engine.local.broker_config import BrokerPlan, write_broker
from engine.local.pipeline import KV_MEMORY
from engine.local.processes import Child, Processes
from engine.transport.address import BrokerUrl
from engine.transport.durable import open_queue
from engine.transport.nats import NatsTransport, connect
from engine.transport.subjects import Subjects
from tests.conftest import Shards
from tests.security.guarded import free_port, run, start_server, without_monitoring

pytestmark = [
    pytest.mark.broker,
    pytest.mark.model,
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform != "linux", reason="needs several loopback addresses"),
]
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
PROMPTS = ("The capital of Japan is", "One, two, three,", "Water boils at", "My favourite colour is")
TOKENS = 48


class Cluster:
    """Three brokers, each on a loopback address of its own."""

    def __init__(self, folder: Path, processes: Processes, port: int) -> None:
        self.folder, self._processes, self._port = folder, processes, port
        self.nodes: dict[str, Child] = {}
        self.url = ",".join(f"tls://{host}:{port}" for host in HOSTS)

    def url_for(self, role: str) -> BrokerUrl:
        """How a role reaches any of them."""
        return BrokerUrl(
            self.url, credentials=self.folder / "keys" / f"{role}.nk", tls_ca=self.folder / "tls" / "ca.pem"
        )

    async def start(self) -> None:
        """Start all."""
        for number, host in enumerate(HOSTS, 1):
            config = self.folder / f"node-{number}.conf"
            without_monitoring(config)
            config.write_text(config.read_text().replace("0.0.0.0", host))
            self.nodes[f"node-{number}"] = await start_server(self._processes, self.folder, config.name)

    async def leader(self, transport: NatsTransport, stream: str) -> str:
        """The broker that leads a stream, which all three keep."""
        info = await transport._client.jetstream(timeout=5).stream_info(stream)
        assert info.config.num_replicas == 3
        assert info.cluster
        assert info.cluster.leader
        return info.cluster.leader


@asynccontextmanager
async def cluster(folder: Path, model: Subjects) -> AsyncGenerator[Cluster]:
    """Three brokers that have agreed on who leads."""
    port = free_port()
    write_broker(BrokerPlan(out=folder, models=(model,), stages=2, hosts=HOSTS, port=port, tls=True, cluster=True))
    async with Processes(folder / "logs") as processes:
        here = Cluster(folder, processes, port)
        await here.start()
        async with connect(here.url_for("decoder"), name="test") as transport:
            while True:
                try:
                    await open_queue(transport, model, use="take")
                    break
                except BrokerError:
                    await asyncio.sleep(0.2)  # they are still electing
        yield here


@asynccontextmanager
async def pipeline(here: Cluster, shards: Path, logs: Path) -> AsyncGenerator[list[Child]]:
    """Stages and decoder that know all three brokers."""
    async with Processes(logs) as processes:

        async def start(role: str, module: str, *options: str) -> Child:
            url = here.url_for(role)
            secret = {
                "SHARDLINE_CREDENTIALS": str(url.credentials),
                "SHARDLINE_TLS_CA": str(url.tls_ca),
                "NATS_URL": url,
            }
            command = [sys.executable, "-m", module, "--shards", str(shards), *options]
            return await processes.start(role, command, {**os.environ, **secret})

        stage = ("--kv-memory", KV_MEMORY, "--threads", "1")
        children = [await start(f"stage-{i}", "stages.cli", "--index", str(i), *stage) for i in (0, 1)]
        children.append(await start("decoder", "engine.decoder.cli"))
        for child in children:
            await child.wait_for_line("ready")
        yield children


async def ask(client: Client, prompt: str, begun: asyncio.Event | None = None) -> str:
    """The answer, its events numbered without a gap; a prompt that was not taken, as the error said, is asked again."""
    while True:
        told = False
        try:
            async for event in client.generate(prompt=prompt, max_tokens=TOKENS, ignore_eos=True):
                told = True
                if begun and isinstance(event, TokenEvent):
                    begun.set()
                if isinstance(event, FinalEvent):
                    assert event.error is None
                    assert event.usage.completion_tokens == TOKENS
                    return event.text
        except BrokerError:
            if told:
                raise
            await asyncio.sleep(
                0.1
            )  # as whoever asks again: without a pause nothing else would run, reconnecting neither


def test_of_three_brokers_one_may_be_killed_under_load(shards: Shards, tmp_path: Path) -> None:
    split = shards(2)
    model = Subjects("default", load_manifest(split).slug)

    async def main() -> None:
        async with (
            cluster(tmp_path / "brokers", model) as here,
            pipeline(here, split, tmp_path / "logs") as children,
            connect(here.url_for("client"), name="test") as transport,
        ):
            client = Client(transport, model)
            before = await asyncio.gather(*(ask(client, prompt) for prompt in PROMPTS))
            begun = [asyncio.Event() for _ in PROMPTS]
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(ask(client, *pair)) for pair in zip(PROMPTS, begun, strict=True)]
                for event in begun:
                    await event.wait()
                here.nodes[await here.leader(transport, model.event_stream)].kill()
                later = [tasks.create_task(ask(client, prompt)) for prompt in PROMPTS]
            assert [task.result() for task in running] == before
            assert [task.result() for task in later] == before
            assert all(child.returncode is None for child in children)
            queue = await open_queue(transport, model, use="look")
            assert (await queue.depth()).dead == 0

    run(main, seconds=240)
