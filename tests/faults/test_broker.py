"""Real processes, a real broker, the real model: the broker is lost, or hangs, in the middle of four answers."""

import asyncio
import signal
from itertools import count

import pytest

from engine.client.client import Client
from engine.contract.errors import BrokerError
from engine.contract.prompt import Event
from engine.local.broker import find_server
from engine.local.pipeline import LocalPipeline
from engine.transport.nats import NatsTransport
from engine.transport.subjects import Subjects
from tests.faults.asking import TOKENS, Answers, Disturbed, assert_same, by_client
from tests.faults.broker import broker_of, end, logged, mark, start_again
from tests.faults.test_decoder import decoder_of
from tests.system.prompts import PROMPTS

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_broker_ended_in_mid_answer_and_started_again_costs_no_text(
    disturbed: Disturbed, number: signal.Signals
) -> None:
    async def end_and_start_again(pipeline: LocalPipeline) -> None:
        await end(broker_of(pipeline), number)
        await start_again(pipeline)

    disturbed.by(end_and_start_again, by_client)


def test_a_broker_that_stays_away_until_steps_are_given_up_costs_no_text(disturbed: Disturbed) -> None:
    async def stay_away(pipeline: LocalPipeline) -> None:
        decoder = decoder_of(pipeline)
        before = mark(decoder)
        await end(broker_of(pipeline))
        await logged(decoder, "waiting for the broker", before)
        await start_again(pipeline)

    disturbed.by(stay_away, by_client)


def test_a_broker_that_hangs_with_unsent_steps_costs_no_text(disturbed: Disturbed) -> None:
    async def hang(pipeline: LocalPipeline) -> None:
        decoder, broker = decoder_of(pipeline), broker_of(pipeline)
        before = mark(decoder)
        broker.signal(signal.SIGSTOP)
        await logged(decoder, "no echo from the broker", before)
        broker.signal(signal.SIGCONT)

    disturbed.by(hang, by_client)


async def one(client: Client, number: int, tag: str, halfway: asyncio.Event) -> list[Event]:
    """All events; a prompt that was not taken is asked again."""
    for attempt in count():
        events: list[Event] = []
        fields = {"id": f"{tag}-{attempt}-{number}", "prompt": PROMPTS[number], "max_tokens": TOKENS}
        try:
            async for event in client.generate(**fields, ignore_eos=True):
                events.append(event)
                halfway.set()
        except BrokerError:
            if events:
                raise
        else:
            return events
    raise AssertionError


@pytest.mark.thorough
def test_a_broker_that_sends_its_clients_away_one_by_one_and_comes_back_costs_no_text(disturbed: Disturbed) -> None:
    """Its lame duck mode, as a rolling upgrade uses it; somebody asks all the while."""
    over, rounds = asyncio.Event(), list[Answers]()

    async def all_the_while(transport: NatsTransport, subjects: Subjects, tag: str, halfway: asyncio.Event) -> Answers:
        client = Client(transport, subjects)
        while not over.is_set() or not rounds:
            asking = (one(client, number, f"{tag}-{len(rounds)}", halfway) for number in range(4))
            rounds.append(list(await asyncio.gather(*asking)))
        return rounds[-1]

    async def upgrade(pipeline: LocalPipeline) -> None:
        leaving = broker_of(pipeline)
        told = await asyncio.create_subprocess_exec(find_server(), "--signal", f"ldm={leaving.pid}")
        assert await told.wait() == 0
        await logged(leaving, "Entering lame duck mode")
        await leaving.wait()
        await start_again(pipeline)
        over.set()

    disturbed.by(upgrade, all_the_while)
    assert len(rounds) > 1
    for told in rounds:
        assert_same(disturbed.calm, told)
