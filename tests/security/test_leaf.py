"""A broker of another site, as `shardline broker-config --leaf` sets it up."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.local.broker_config import LEAF_PORT, BrokerPlan, write_broker
from engine.local.processes import Processes
from engine.transport.address import BrokerUrl
from engine.transport.durable import open_events, open_queue
from engine.transport.nats import NatsTransport, connect
from tests.security.guarded import MODEL, free_port, run, start_server, without_monitoring

pytestmark = pytest.mark.broker


@asynccontextmanager
async def two_sites(
    folder: Path, *, there: str = "decoder", here: str = "client"
) -> AsyncGenerator[tuple[NatsTransport, NatsTransport]]:
    """Connections to the other site's broker and to the main one, each with a role's key."""
    ports = {name: free_port() for name in ("nats.conf", "leaf.conf")}
    link = str(free_port())
    plan = BrokerPlan(out=folder, models=(MODEL,), stages=2, hosts=("localhost",), tls=True, leaf=True)
    write_broker(plan)
    for name, port in ports.items():
        without_monitoring(folder / name)
        text = (folder / name).read_text().replace(f"port: {plan.port}", f"port: {port}")
        (folder / name).write_text(text.replace("0.0.0.0", "127.0.0.1").replace(str(LEAF_PORT), link))

    def url(name: str, role: str) -> BrokerUrl:
        key, ca = folder / "keys" / f"{role}.nk", folder / "tls" / "ca.pem"
        return BrokerUrl(f"tls://localhost:{ports[name]}", credentials=key, tls_ca=ca)

    async with Processes(folder / "logs") as processes:
        for name in ports:
            await start_server(processes, folder, name)
        async with (
            connect(url("leaf.conf", there), name="test") as site,
            connect(url("nats.conf", here), name="test") as central,
        ):
            yield site, central


def test_a_site_talks_through_its_own_broker_and_prompts_wait_at_the_main_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_sites(tmp_path, there="client", here="decoder") as (client, decoder):
            await linked(client, decoder)
            jobs, log = await open_queue(decoder, MODEL, use="take"), await open_events(decoder, MODEL, writer="d")
            async with client.subscribe(MODEL.tokens("r")) as inbox:
                await (await open_queue(client, MODEL)).put(b"why", message_id="r")
                [job] = await jobs.take(1, timeout=5)
                assert job.data == b"why"
                await log.append("r", b"because", prompt="p", after=0)
                assert (await inbox.get()).data == b"because"
                assert [event.data for event in await (await open_events(client, MODEL)).read("r")] == [b"because"]
                await job.done()

    run(main)


def test_a_decoder_at_another_site_takes_and_settles_prompts_of_the_main_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with two_sites(tmp_path) as (site, central):
            await linked(central, site)
            jobs, log = await open_queue(site, MODEL, use="take"), await open_events(site, MODEL, writer="d")
            async with central.subscribe(MODEL.tokens("r")) as inbox:
                await (await open_queue(central, MODEL)).put(b"why", message_id="r")
                [job] = await jobs.take(1, timeout=5)
                await job.keep()
                await log.append("r", b"because", prompt="p", after=0)
                assert (await inbox.get()).data == b"because"
                await job.done()
            assert (await jobs.depth()).working == 0
            lease = await site.lease(bucket=MODEL.lease_bucket, key="pipeline")
            assert await lease.write(b"d", after=0) == 1

    run(main)


async def linked(one: NatsTransport, other: NatsTransport) -> None:
    """Return once the two brokers have found each other."""
    async with one.subscribe(inbox_of_ours := one.new_inbox()) as inbox:
        while not inbox.waiting:
            await other.publish(inbox_of_ours, b"")
            await asyncio.sleep(0.05)  # nothing tells
