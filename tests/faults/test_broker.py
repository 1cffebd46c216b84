"""Real processes, a real broker, the real model: the broker is lost, or hangs, in the middle of four answers."""

import asyncio
import signal

import pytest

from engine.local.broker import find_server
from engine.local.pipeline import LocalPipeline
from tests.faults.asking import Disturbed, by_client
from tests.faults.broker import broker_of, end, logged, mark, start_again
from tests.faults.test_decoder import decoder_of

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


@pytest.mark.thorough
def test_a_broker_that_sends_its_clients_away_one_by_one_and_comes_back_costs_no_text(disturbed: Disturbed) -> None:
    """Its lame duck mode, as a rolling upgrade uses it: nothing is stored any more, later the links are cut."""

    async def upgrade(pipeline: LocalPipeline) -> None:
        leaving = broker_of(pipeline)
        told = await asyncio.create_subprocess_exec(find_server(), "--signal", f"ldm={leaving.pid}")
        assert await told.wait() == 0
        await logged(leaving, "Entering lame duck mode")
        await leaving.wait()
        await start_again(pipeline)

    disturbed.by(upgrade, by_client)
