"""What requests share, and what they may demand: chats, choices and grammars; real model, real processes."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from engine.client.client import Client
from engine.contract.errors import PromptError
from engine.contract.prompt import FinalEvent
from engine.local.model import demo_draft
from engine.local.pipeline import local_pipeline
from engine.transport.nats import connect
from engine.transport.subjects import Subjects
from tests.conftest import Shards

pytestmark = [pytest.mark.model, pytest.mark.broker]
BLOCK = 32
PERSON: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "person",
        "schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 20},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "likes": {"type": "array", "items": {"enum": ["tea", "coffee", "water"]}, "maxItems": 3},
            },
            "required": ["name", "age", "likes"],
            "additionalProperties": False,
        },
    },
}
DRAFTS: tuple[dict[str, Any], ...] = ({"draft": "none"}, {"draft": "model", "draft_tokens": 4}, {"draft": "auto"})


async def chat(client: Client) -> None:
    """The next turn of a chat finds the turns before it."""
    messages = [{"role": "user", "content": "Tell me about the sea, please, in a few sentences."}]
    first = await client.complete(messages=messages, max_tokens=80)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And the moon?"}]
    second = await client.complete(messages=messages, max_tokens=16)
    seen = first.usage.prompt_tokens + first.usage.completion_tokens
    assert second.usage.cached_tokens >= (seen - 2) // BLOCK * BLOCK - BLOCK


async def choices(client: Client) -> None:
    """Further choices share the prompt's blocks; the first is the answer that comes alone."""
    fields = {"prompt": "Once upon a time, in a land far away, there was " * 8, "max_tokens": 24, "ignore_eos": True}
    alone = await client.complete(temperature=0.8, seed=5, **fields)
    several = await client.complete(temperature=0.8, seed=5, n=3, **fields)
    assert several.choices[0].ids == alone.ids
    assert len({choice.ids for choice in several.choices}) == 3


async def grammars(client: Client) -> None:
    """Every answer keeps to its grammar, and drafts change none of them."""

    async def each(**fields: Any) -> FinalEvent:
        finals = await asyncio.gather(*(client.complete(max_tokens=120, **fields, **drafts) for drafts in DRAFTS))
        assert len({final.ids for final in finals}) == 1
        assert finals[0].finish_reason == "stop"
        return finals[1]

    question = [{"role": "user", "content": "Describe a person as JSON."}]
    for sampling in ({}, {"temperature": 0.9, "seed": 8}):
        final = await each(messages=question, response_format=PERSON, **sampling)
        person = json.loads(final.text)
        assert set(person) == {"name", "age", "likes"}
        assert isinstance(person["age"], int) and 0 <= person["age"] <= 150
        assert set(person["likes"]) <= {"tea", "coffee", "water"}
        assert final.usage.accepted_tokens > 5  # what the grammar leaves no choice about is drafted
    colour = {"type": "choice", "choices": ["red", "green", "very dark blue"]}
    final = await each(prompt="The colour of the sky is", response_format=colour)
    assert final.text in colour["choices"]
    final = await each(prompt="My phone number is ", response_format={"type": "regex", "regex": "[0-9]{3}-[0-9]{4}"})
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", final.text)
    with pytest.raises(PromptError, match="response_format"):
        await client.complete(prompt="x", response_format={"type": "regex", "regex": "("})


def test_requests_share_what_they_can_and_keep_to_what_they_must(shards: Shards, tmp_path: Path) -> None:
    draft = asyncio.run(demo_draft(shards(1), print))

    async def main() -> None:
        async with (
            asyncio.timeout(400),
            local_pipeline(shards(2), tmp_path, print, decoder_options=("--draft", str(draft))) as here,
            connect(here.url, name="test") as transport,
        ):
            client = Client(transport, Subjects("default", here.slug))
            await chat(client)
            await choices(client)
            await grammars(client)

    asyncio.run(main())
