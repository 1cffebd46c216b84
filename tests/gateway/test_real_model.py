"""Real processes, a broker, the real model, and clients that others wrote: openai, sync and async, and LangChain."""

import asyncio
import json
import sys
from collections.abc import Generator
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import APIError, AsyncOpenAI, OpenAI
from pydantic import SecretStr

from engine.client.api import Shardline
from engine.contract.prompt import FinalEvent
from tests.conftest import Shards
from tests.system.running import Running, running

pytestmark = [pytest.mark.model, pytest.mark.broker]
MODEL = "smollm2-135m-instruct"
SEA: list[Any] = [{"role": "user", "content": "Tell me about the sea."}]
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather in a city.", "parameters": CITY, "strict": True},
}
ASKED: dict[str, Any] = {"model": MODEL, "messages": SEA, "max_tokens": 24}


@pytest.fixture(scope="module")
def here(shards: Shards, tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    with running(shards(2), tmp_path_factory.mktemp("gateway"), decoder_options=("--draft", "lookup")) as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def url(here: Running) -> str:
    command = [sys.executable, "-m", "engine.gateway.cli", "--nats", here.pipeline.url, "--port", "0"]

    async def start(*_: Any) -> str:
        child = await here.pipeline.processes.start("gateway", [*command, "--patience", "1"])
        return (await child.wait_for_line("ready gateway at ")).removeprefix("ready gateway at ") + "/v1"

    return here.do(start)


@pytest.fixture
def client(url: str) -> Generator[OpenAI]:
    with OpenAI(base_url=url, api_key="none", max_retries=0) as made:
        yield made


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.9, "seed": 4}, {"draft": "none"}], ids=str)
def test_streamed_and_whole_answers_are_equal(client: OpenAI, fields: dict[str, Any]) -> None:
    asked: dict[str, Any] = {**ASKED, "extra_body": fields}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    chunks = client.chat.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert whole and len(whole) > 40


def test_an_answer_that_ends_by_itself_says_stop_whether_drafted_or_not(client: OpenAI) -> None:
    """E01."""
    for drafts in ({"draft": "none"}, {"draft": "lookup", "draft_tokens": 4}):
        chunks = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Say yes or no."}],
            response_format={"type": "choice", "choices": ["yes"]},  # type: ignore[arg-type]
            stream=True,
            extra_body=drafts,
        )
        reasons = [chunk.choices[0].finish_reason for chunk in chunks]
        assert reasons[-1] == "stop" and set(reasons[:-1]) == {None}


def test_an_answer_keeps_to_a_schema(client: OpenAI) -> None:
    """E11."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    }
    reply = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "The capital of France, as JSON."}],
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
        max_completion_tokens=60,
    )
    assert set(json.loads(reply.choices[0].message.content or "")) == {"city"}


def test_logprobs_spell_the_answer(client: OpenAI) -> None:
    """E05."""
    choice = client.chat.completions.create(**ASKED, logprobs=True, top_logprobs=2).choices[0]
    assert choice.logprobs and choice.logprobs.content
    assert b"".join(bytes(one.bytes or []) for one in choice.logprobs.content).decode() == choice.message.content
    assert all(one.token == one.top_logprobs[0].token for one in choice.logprobs.content)


def test_async_clients_are_answered_side_by_side(url: str) -> None:
    async def main() -> None:
        async with AsyncOpenAI(base_url=url, api_key="none") as client:
            alone = await client.chat.completions.create(**ASKED)
            many = await asyncio.gather(*(client.chat.completions.create(**ASKED) for _ in range(4)))
        assert {one.choices[0].message.content for one in many} == {alone.choices[0].message.content}

    asyncio.run(main())


def test_langchain_talks_to_it(client: OpenAI, url: str) -> None:
    chat = ChatOpenAI(base_url=url, api_key=SecretStr("none"), model=MODEL, max_completion_tokens=24, temperature=0)
    messages = [SystemMessage("You are brief."), HumanMessage("Tell me about the sea.")]
    whole = chat.invoke(messages)
    assert whole.content == "".join(str(chunk.content) for chunk in chat.stream(messages))
    assert whole.response_metadata["finish_reason"] == "length"
    texts = [{"role": "system", "content": "You are brief."}, *SEA]
    assert whole.content == client.chat.completions.create(**{**ASKED, "messages": texts}).choices[0].message.content


def test_a_model_that_must_call_a_tool_does(client: OpenAI) -> None:
    """E16. Its template knows no tools: the system message tells it of them."""
    asked: dict[str, Any] = {**ASKED, "max_tokens": 80, "tools": [WEATHER], "tool_choice": "required"}
    asked["messages"] = [{"role": "user", "content": "What is the weather like in Paris?"}]
    choice = client.chat.completions.create(**asked, parallel_tool_calls=False).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls and not choice.message.content
    call: Any = choice.message.tool_calls[0]
    assert call.function.name == "weather" and isinstance(json.loads(call.function.arguments)["city"], str)
    free = client.chat.completions.create(**{**asked, "tool_choice": "auto", "max_tokens": 30}).choices[0]
    assert free.finish_reason in ("length", "stop", "tool_calls")


def test_langchain_binds_tools_and_hands_back_results(url: str) -> None:
    """E16."""
    chat = ChatOpenAI(base_url=url, api_key=SecretStr("none"), model=MODEL, max_completion_tokens=60, temperature=0)
    question = HumanMessage("What is the weather like in Paris?")
    must = chat.bind_tools([WEATHER], tool_choice="weather")
    answer: Any = must.invoke([question])
    assert [call["name"] for call in answer.tool_calls] == ["weather"] and answer.tool_calls[0]["args"]["city"]
    first, *more = must.stream([question])
    whole: Any = sum(more, first)  # type: ignore[reportArgumentType, reportCallIssue]
    assert [call["args"] for call in whole.tool_calls] == [call["args"] for call in answer.tool_calls]
    result = ToolMessage("It rains.", tool_call_id=answer.tool_calls[0]["id"])
    assert chat.bind_tools([WEATHER], tool_choice="none").invoke([question, answer, result]).content


def test_ten_lines_of_python_stream_an_answer(here: Running, client: OpenAI) -> None:
    async def ask(*_: Any) -> tuple[str, FinalEvent]:
        async with Shardline(here.pipeline.url) as pipeline:
            text = ""
            async for event in pipeline.stream("Tell me about the sea.", max_tokens=24):
                text += "" if isinstance(event, FinalEvent) else event.text
            return text, await pipeline.generate("Tell me about the sea.", max_tokens=24, durable=True)

    text, final = here.do(ask)
    assert text == final.text == client.chat.completions.create(**ASKED).choices[0].message.content


@pytest.mark.faults
def test_a_stage_that_does_not_come_back_ends_the_stream_with_an_error(here: Running, client: OpenAI) -> None:
    """E08; the last test here: the stage is started again for nobody."""
    chunks = client.chat.completions.create(
        **{**ASKED, "max_tokens": 400}, stream=True, extra_body={"ignore_eos": True}
    )
    seen = [next(chunks) for _ in range(5)]
    here.pipeline.stages[1].kill()
    with pytest.raises(APIError) as caught:
        seen += list(chunks)
    assert "given up" in str(caught.value)
    assert not any(chunk.choices[0].finish_reason for chunk in seen)
    with pytest.raises(APIError, match=r"is missing|waits for"):
        client.chat.completions.create(**ASKED)
