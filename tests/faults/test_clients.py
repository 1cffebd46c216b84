"""Real processes, a real broker, the real model: clients lose their connection, or everybody loses the broker."""

import asyncio
from urllib.parse import urlsplit

import pytest

from engine.contract.prompt import FinalEvent, decode_event
from engine.local.broker import start_broker
from engine.local.pipeline import LocalPipeline
from engine.transport.nats import NatsTransport, connect
from engine.transport.subjects import Subjects
from tests.faults.asking import Answers, Disturbed, by_client
from tests.transport.proxy import Proxy, proxy_to

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]


def test_a_client_whose_cable_is_pulled_until_all_is_over_gets_the_rest_from_the_log(disturbed: Disturbed) -> None:
    cables: list[Proxy] = []
    over = asyncio.Event()

    async def ask(transport: NatsTransport, subjects: Subjects, tag: str, halfway: asyncio.Event) -> Answers:
        async with (
            transport.subscribe(subjects.tokens("*")) as observer,
            proxy_to(disturbed.url) as cable,
            connect(cable.url, name="client", watch=0.5) as client,
        ):
            cables.append(cable)
            asking = asyncio.create_task(by_client(client, subjects, tag, halfway))
            finals = 0
            while finals < 4:
                finals += isinstance(decode_event((await observer.get()).data), FinalEvent)
            over.set()
            return await asking

    async def pull_it(_: LocalPipeline) -> None:
        cables[-1].silent = True
        cables[-1].cut()
        await over.wait()
        cables[-1].silent = False

    disturbed.by(pull_it, ask)


def test_a_broker_killed_in_mid_answer_and_started_again_costs_our_clients_no_text(disturbed: Disturbed) -> None:
    async def kill_and_start_again(pipeline: LocalPipeline) -> None:
        broker = next(child for child in reversed(pipeline.processes.children) if child.name == "nats-server")
        broker.kill()
        await broker.wait()
        await start_broker(pipeline.processes, broker.log.parent.parent, urlsplit(pipeline.url).port or 0)

    disturbed.by(kill_and_start_again, by_client)
