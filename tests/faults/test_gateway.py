"""Real processes, a real broker, the real model: streams of the official client when the decoder is killed."""

import asyncio
import signal
import sys

import pytest
from openai import AsyncOpenAI

from engine.transport.nats import NatsTransport
from engine.transport.subjects import Subjects
from tests.faults.asking import BEFORE, HASTY, TOKENS, Disturbed
from tests.system.prompts import PROMPTS

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]


def test_streams_through_the_gateway_go_on_when_the_decoder_is_killed(disturbed: Disturbed) -> None:
    async def one(client: AsyncOpenAI, model: str, number: int, halfway: asyncio.Event) -> str:
        asked = {"model": model, "prompt": PROMPTS[number], "max_tokens": TOKENS, "extra_body": {"ignore_eos": True}}
        texts: list[str] = []
        chunk = None
        async for chunk in await client.completions.create(**asked, stream=True):  # type: ignore[reportCallIssue]
            texts.append(chunk.choices[0].text)
            if len(texts) == BEFORE:
                halfway.set()
        assert chunk is not None and "+" not in (chunk.system_fingerprint or "+")  # all of it was computed alike
        return "".join(texts)

    async def ask(_: NatsTransport, subjects: Subjects) -> list[str]:
        pipeline, halfway = disturbed.pipeline, asyncio.Event()
        command = [sys.executable, "-m", "engine.gateway.cli", "--nats", disturbed.url, "--port", "0"]
        gateway = await pipeline.processes.start("gateway", command)
        url = (await gateway.wait_for_line("ready gateway at ")).removeprefix("ready gateway at ")
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            asking = [asyncio.create_task(one(client, subjects.model, number, halfway)) for number in range(4)]
            await halfway.wait()
            assert pipeline.decoder is not None and not any(task.done() for task in asking)
            pipeline.decoder.kill()
            await pipeline.decoder.wait()
            pipeline.decoder = await pipeline.start_decoder(*HASTY)
            texts = await asyncio.gather(*asking)
        gateway.signal(signal.SIGTERM)
        assert await gateway.wait() == 0
        return texts

    assert disturbed.do(ask) == [events[-1].text for events in disturbed.calm]
