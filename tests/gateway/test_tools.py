"""Tools through the official client: a scripted model calls, its calls are objects, results are taken back."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from engine.decoder.constraint import ConstraintCompiler
from tests.decoder.local_pipeline import ByteTokenizer, pipeline
from tests.gateway.serving import Served, gateway
from tests.manifests import VOCABULARY, manifest

pytestmark = pytest.mark.pipelines
EOS = manifest().eos_ids[0]
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
SAID = 'Look: <tool_call>\n{"name": "weather", "arguments": {"city": "é"}}\n</tool_call>'
ASKED: dict[str, Any] = {"model": "model", "messages": [{"role": "user", "content": "?"}], "tools": [WEATHER]}


class Tokens(ByteTokenizer):
    """Shows what the template was given; byte 0 ends an answer."""

    def text_bytes(self) -> list[bytes]:
        return [b"" if i == EOS else piece for i, piece in enumerate(super().text_bytes())]

    def chat(self, messages: Sequence[Any], tools: Sequence[Any] = ()) -> str:
        return f"{len(tools)} tools, {[message['role'][0] for message in messages]}:"


def says(text: str) -> Callable[[Sequence[int]], int]:
    """The model: says this behind any prompt, then ends."""
    data = [*text.encode(), EOS]

    def script(history: Sequence[int]) -> int:
        prompt = bytes(history).index(b"]:") + 2
        return data[min(len(history) - prompt, len(data) - 1)]

    return script


def serve(text: str, test: Callable[[Served], Awaitable[None]]) -> None:
    async def main() -> None:
        async with pipeline(whole=False, default_max_tokens=150) as here:
            here.tokenizer = tokens = Tokens()
            here.compiler = ConstraintCompiler(tokens, vocabulary=VOCABULARY, eos_ids=[EOS])
            await here.start(script=says(text))
            async with gateway(here) as served:
                await test(served)

    asyncio.run(main())


def test_a_call_is_an_object_whole_and_streamed_and_its_result_is_taken_back() -> None:
    """E16."""

    async def test(served: Served) -> None:
        client = served.client()
        whole = (await client.chat.completions.create(**ASKED)).choices[0]
        assert whole.finish_reason == "tool_calls" and whole.message.content == "Look:"
        assert whole.message.tool_calls
        call: Any = whole.message.tool_calls[0]
        assert (call.type, call.function.name) == ("function", "weather")
        assert json.loads(call.function.arguments) == {"city": "é"}
        async with client.chat.completions.stream(**ASKED, logprobs=True) as stream:
            final = (await stream.get_final_completion()).choices[0]
        assert final.finish_reason == "tool_calls" and final.message.content == "Look:"
        assert final.message.tool_calls
        streamed = final.message.tool_calls[0].function
        assert (streamed.name, streamed.arguments) == ("weather", call.function.arguments)
        assert final.logprobs and len(final.logprobs.content or []) == len(SAID.encode()) + 1
        turns = [*ASKED["messages"], whole.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        again = await client.chat.completions.create(**{**ASKED, "messages": turns})
        assert again.usage and again.usage.prompt_tokens == len("1 tools, ['u', 'a', 't']:")

    serve(SAID, test)


def test_without_tools_the_same_text_is_text() -> None:
    async def test(served: Served) -> None:
        for fields in ({"tools": []}, {"tool_choice": "none"}):
            choice = (await served.client().chat.completions.create(**{**ASKED, **fields})).choices[0]
            assert (choice.finish_reason, choice.message.content) == ("stop", SAID)
            assert choice.message.tool_calls is None

    serve(SAID, test)


def test_a_model_that_would_rather_talk_must_call() -> None:
    async def test(served: Served) -> None:
        named: Any = {"type": "function", "function": {"name": "weather"}}
        for choice in ("required", named):
            asked = await served.client().chat.completions.create(**{**ASKED, "tool_choice": choice})
            assert asked.choices[0].message.tool_calls and asked.choices[0].message.content is None

    forced = '<tool_call>\n{"name": "weather", "arguments": '
    serve("x" * len(forced) + "{}", test)


def test_a_call_that_was_cut_off_is_text() -> None:
    async def test(served: Served) -> None:
        choice = (await served.client().chat.completions.create(**ASKED, max_tokens=40)).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("length", SAID[:40])

    serve(SAID, test)
