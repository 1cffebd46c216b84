"""`shardline chat`: what it remembers, and what it does with Ctrl-C and with errors."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from engine.chat import Talk
from engine.client.api import Shardline
from engine.contract.errors import PromptError
from tests.decoder.local_pipeline import SUBJECTS, answer_to, pipeline


def with_talk(test: Callable[[Talk, list[str]], Awaitable[None]], *, system: str = "", max_tokens: int = 5) -> None:
    """Runs a test with a conversation, and what it has written."""

    async def main() -> None:
        written: list[str] = []
        async with pipeline() as here:
            whole = Shardline.over(here.transport, SUBJECTS)
            await test(Talk(whole, system, {"max_tokens": max_tokens}, written.append), written)

    asyncio.run(main())


def test_an_answer_streams_and_the_next_turn_knows_it() -> None:
    async def test(talk: Talk, written: list[str]) -> None:
        first = answer_to("be brief.one", 5)
        assert (final := await talk.ask("one")) and final.text == first
        assert "".join(written) == first and len(written) > 1
        assert (final := await talk.ask("two")) and final.text == answer_to(f"be brief.one{first}two", 5)
        assert [message["role"] for message in talk.messages] == ["system", "user", "assistant", "user", "assistant"]

    with_talk(test, system="be brief.")


def test_a_reset_leaves_only_the_system_message() -> None:
    async def test(talk: Talk, _: list[str]) -> None:
        await talk.ask("one")
        talk.reset()
        assert talk.messages == [{"role": "system", "content": "s"}]
        assert (final := await talk.ask("two")) and final.text == answer_to("stwo", 5)

    with_talk(test, system="s")


def test_a_stopped_answer_stays_as_far_as_it_was_written_and_the_talk_goes_on() -> None:
    async def test(talk: Talk, written: list[str]) -> None:
        asked = asyncio.create_task(talk.ask("one"))
        while not written:  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0)
        talk.stop()
        assert await asked is None
        assert talk.messages[-1] == {"role": "assistant", "content": "".join(written)}
        assert len("".join(written)) < 150
        assert await talk.ask("two") is not None

    with_talk(test, max_tokens=150)


def test_a_turn_that_cannot_be_answered_is_forgotten() -> None:
    async def test(talk: Talk, _: list[str]) -> None:
        await talk.ask("one")
        before = list(talk.messages)
        with pytest.raises(PromptError):
            await talk.ask("x" * 300)  # longer than the context
        assert talk.messages == before

    with_talk(test)
