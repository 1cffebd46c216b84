"""Real processes, a real broker, the real model: clients lose their connection, or everybody loses the broker."""

import asyncio
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest

from engine.client.client import Client
from engine.contract.prompt import FinalEvent, decode_event
from engine.local.broker import start_broker
from engine.local.pipeline import LocalPipeline
from engine.transport.nats import NatsTransport, connect
from engine.transport.subjects import Subjects
from tests.faults.asking import Answers, Disturbed, by_client
from tests.faults.broker import broker_of, end, start_again
from tests.system.prompts import PROMPTS
from tests.transport.proxy import Proxy, proxy_to

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]
CROWD = 100
FEW = 8  # tokens
SPREAD = 0.1  # seconds: half of what clients are spread over


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


@pytest.mark.thorough
def test_a_hundred_clients_that_lose_the_broker_at_once_come_back_and_get_what_they_asked_for(
    disturbed: Disturbed,
) -> None:
    """And not at once: a broker that has just started would have them all in one moment."""
    back: list[float] = []

    async def one(client: NatsTransport, subjects: Subjects, number: int, begun: asyncio.Event) -> str:
        fields = {"prompt": PROMPTS[number % 4], "max_tokens": FEW, "ignore_eos": True}
        text = ""
        async for event in Client(client, subjects).generate(id=f"crowd-{number}", **fields):
            begun.set()
            text = event.text
        return text

    async def until_back(client: NatsTransport) -> None:
        while not client.link.reconnects:  # noqa: ASYNC110  the link tells nobody
            await asyncio.sleep(0.005)
        back.append(asyncio.get_running_loop().time())

    async def crowd(transport: NatsTransport, subjects: Subjects) -> list[str]:
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(connect(disturbed.url, name=f"client-{number}"))
                for number in range(CROWD)
            ]
            begun = [asyncio.Event() for _ in clients]
            async with asyncio.TaskGroup() as tasks:
                asked = [
                    tasks.create_task(one(client, subjects, number, begun[number]))
                    for number, client in enumerate(clients)
                ]
                await asyncio.wait([asyncio.ensure_future(event.wait()) for event in begun[:2]])
                for client in clients:
                    tasks.create_task(until_back(client))
                await end(broker_of(disturbed.pipeline))
                await start_again(disturbed.pipeline)
            return [task.result() for task in asked]

    told = disturbed.do(crowd)
    assert [disturbed.calm[number % 4][-1].text.startswith(text) for number, text in enumerate(told)] == [True] * CROWD
    assert all(told)
    assert max(back) - min(back) > SPREAD
