"""Real processes, a real broker, the real model: what the network does between the broker and one stage."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from engine.local.pipeline import LocalPipeline
from engine.transport.nats import NatsTransport
from engine.transport.subjects import Subjects
from tests.faults.asking import Answers, Disturbed, answers
from tests.faults.broker import logged, mark
from tests.faults.messages import Messages
from tests.faults.replacing import behind_a_cable
from tests.transport.proxy import Proxy

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]
Disturbance = Callable[[LocalPipeline, Proxy, Messages], Awaitable[None]]


def on_its_link(disturbed: Disturbed, index: int, disturb: Disturbance) -> None:
    """Ask while a stage is behind a proxy, and disturb its link in mid-answer."""

    async def ask(transport: NatsTransport, subjects: Subjects, tag: str, halfway: asyncio.Event) -> Answers:
        async with behind_a_cable(disturbed.pipeline, index) as (cable, messages):

            async def disturb_it() -> None:
                await halfway.wait()
                await disturb(disturbed.pipeline, cable, messages)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(disturb_it())
                asking = tasks.create_task(answers(transport, subjects, tag, halfway))
            return asking.result()

    disturbed.by(nothing, ask)


async def nothing(_: LocalPipeline) -> None:
    """The question disturbs itself."""


def test_a_half_open_link_of_a_stage_is_replaced_and_costs_no_text(disturbed: Disturbed) -> None:
    async def freeze(pipeline: LocalPipeline, cable: Proxy, _: Messages) -> None:
        before = mark(pipeline.stages[1])
        cable.freeze()
        await logged(pipeline.stages[1], "reconnected to the broker", before)

    on_its_link(disturbed, 1, freeze)


@pytest.mark.thorough
def test_a_link_of_a_stage_that_is_cut_costs_no_text(disturbed: Disturbed) -> None:
    async def cut(pipeline: LocalPipeline, cable: Proxy, _: Messages) -> None:
        before = mark(pipeline.stages[0])
        cable.cut()
        await logged(pipeline.stages[0], "reconnected to the broker", before)

    on_its_link(disturbed, 0, cut)


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["lose", "double", "swap"])
def test_activations_that_are_lost_doubled_or_out_of_order_cost_no_text(disturbed: Disturbed, what: str) -> None:
    changed: list[int] = []

    async def change_one(_: LocalPipeline, __: Proxy, messages: Messages) -> None:
        messages.next(what)
        while not messages.done:  # noqa: ASYNC110  the next step tells nobody
            await asyncio.sleep(0.01)
        changed.append(messages.done)

    on_its_link(disturbed, 1, change_one)
    assert changed == [1]
