"""Real processes, a real broker, the real model: a prompt that kills the stage which computes it."""

import asyncio
from typing import Any

import pytest

from engine.client.client import Client
from engine.contract.manifest import load_manifest
from engine.contract.prompt import FinalEvent
from engine.decoder.tokenizer import load_tokenizer
from engine.local.pipeline import LocalPipeline
from engine.transport.durable import open_queue
from engine.transport.nats import NatsTransport
from engine.transport.subjects import Subjects
from tests.faults.asking import Answers, Disturbed, assert_same, by_client
from tests.faults.replacing import another, start_crashing

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]
POISON = "Tell me of zyzzyva qoph."


async def keep_alive(pipeline: LocalPipeline, index: int, tokens: list[int]) -> None:
    """Start the crashing stage again whenever it has crashed."""
    while True:
        await pipeline.stages[index].wait()
        pipeline.stages[index] = await start_crashing(pipeline, index, tokens)


@pytest.mark.thorough
def test_a_prompt_that_kills_its_stage_becomes_a_dead_letter_and_those_beside_it_are_answered(
    disturbed: Disturbed,
) -> None:
    pipeline = disturbed.pipeline
    tokens = load_tokenizer(pipeline.shards, load_manifest(pipeline.shards)).encode(" zyzzyva qoph", special=False)

    async def ask_beside_poison(transport: NatsTransport, subjects: Subjects) -> tuple[Answers, FinalEvent]:
        async with another(pipeline, 0, lambda: start_crashing(pipeline, 0, tokens)):
            keeping = asyncio.create_task(keep_alive(pipeline, 0, tokens))
            fields: dict[str, Any] = {"id": "poison", "prompt": POISON, "max_tokens": 4}
            poison = asyncio.create_task(final_of(Client(transport, subjects), fields))
            told = await by_client(transport, subjects, "beside-poison", asyncio.Event())
            final = await poison
            keeping.cancel()
            return told, final

    told, final = disturbed.do(ask_beside_poison)
    assert_same(disturbed.calm, told)
    assert final.error is not None and "times in a row on this request" in final.error["message"]

    async def dead(transport: NatsTransport, subjects: Subjects) -> list[str]:
        return [letter.data for letter in await (await open_queue(transport, subjects)).letters()]

    assert [POISON in letter for letter in disturbed.do(dead)] == [True]


async def final_of(client: Client, fields: dict[str, Any]) -> FinalEvent:
    *_, final = [event async for event in client.generate(**fields)]
    assert isinstance(final, FinalEvent)
    return final
