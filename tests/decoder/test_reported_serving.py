"""What others reported of serving, asked of a whole pipeline on the memory transport whose model keeps to a script."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, cast

import numpy as np
import orjson
import pytest

from engine.client.client import Client
from engine.contract.drafts import Draft, DraftRequest
from engine.contract.errors import BrokerError, DeviceError, ErrorCode, PromptError
from engine.contract.prompt import FinalEvent, TokenEvent, decode_event
from engine.decoder.drafters import ThreadDrafter
from engine.transport.base import Transport
from tests.decoder.local_pipeline import (
    SUBJECTS,
    ByteTokenizer,
    Pipeline,
    answer_to,
    next_token,
    pipeline,
)
from tests.manifests import EOS, VOCABULARY
from tests.narrow import NarrowTransport

THREAD = ThreadPoolExecutor(1)
LONG = "a question that is being answered all the time"
NextToken = Callable[[Sequence[int]], int]


def repeating(*script: int, behind: int = 6) -> NextToken:
    """These tokens again and again behind a prompt of that length."""
    return lambda history: script[(len(history) - behind) % len(script)]


def run(
    test: Callable[[Pipeline], Awaitable[None]],
    script: NextToken = next_token,
    *,
    pieces: dict[int, bytes] | None = None,
    draft: NextToken | None = None,
    manifest: dict[str, Any] | None = None,
    max_payload: int = 1 << 20,
    blocks: int = 64,
    **settings: Any,
) -> None:
    """A pipeline of two stages that says what the script says, and drafts what `draft` says."""

    def propose(requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(tuple(said(draft or script, request.tokens, request.count))) for request in requests]

    async def main() -> None:
        async with pipeline(whole=False, **settings) as here:
            here.broker.max_payload = max_payload
            here.tokenizer, here.manifest = ByteTokenizer(pieces), manifest or {}
            here.draft_with(lambda: ThreadDrafter(propose, THREAD), "lookup", "model")
            await here.start(script=script, blocks=blocks)
            await test(here)

    asyncio.run(main())


def said(script: NextToken, history: Sequence[int], tokens: int) -> list[int]:
    text = list(history)
    for _ in range(tokens):
        text.append(script(text))
    return text[len(history) :]


async def whole(here: Pipeline, **fields: Any) -> tuple[list[TokenEvent], FinalEvent]:
    *tokens, final = [event async for event in here.client.generate(**fields)]
    assert isinstance(final, FinalEvent)
    return [event for event in tokens if isinstance(event, TokenEvent)], final


async def refused(here: Pipeline, data: bytes) -> tuple[str, str]:
    """Code and message of the answer to a request with a reply subject."""
    async with here.transport.subscribe("reply.1") as inbox:
        await here.transport.publish(SUBJECTS.generate, data, reply="reply.1")
        final = decode_event((await inbox.get()).data)
    assert isinstance(final, FinalEvent) and final.error is not None
    return final.error["code"], final.error["message"]


WAYS: tuple[dict[str, Any], ...] = (
    {"draft": "none"},
    {"draft": "lookup", "draft_tokens": 6},
    {"draft": "model", "draft_tokens": 4},
    {"draft": "model", "draft_tokens": 1},
)


def test_everything_stops_at_the_token_that_completes_a_stop_string() -> None:
    """A10: text, ids, logprobs, usage and what is kept for the next turn."""
    ha, ho = 128, 129
    asked = {"prompt": "laugh!", "max_tokens": 40, "stop": [" ha ha ha"], "logprobs": True, "top_logprobs": 2}

    async def test(here: Pipeline) -> None:
        for way in WAYS:
            tokens, final = await whole(here, **asked, **way)
            assert (final.text, final.ids, final.finish_reason) == ("", (ha, ha, ha), "stop")
            assert [one.id for one in final.logprobs] == [ha, ha, ha]
            assert sum(len(event.ids) for event in tokens) == final.usage.completion_tokens == 3
            turn = bytes(range(100, 116)).decode()
            _, again = await whole(here, prompt="laugh!" + turn, max_tokens=4, draft="none")
            assert again.ids == tuple(said(script, list(("laugh!" + turn).encode()), 4))

    script = repeating(ha, ha, ha, ho, ho, ho)
    run(test, script, pieces={ha: b" ha", ho: b" ho"})


@pytest.mark.parametrize("ends", [[2], [7], [2, 7]])
def test_ends_that_a_model_s_settings_name_are_ignored_when_that_is_asked_for(ends: list[int]) -> None:
    """A14."""
    script = repeating(4, 5, 7, 6, 8, 2)
    first = min(said(script, b"hello!", 6).index(end) for end in ends) + 1

    async def test(here: Pipeline) -> None:
        for way in WAYS:
            _, final = await whole(here, prompt="hello!", max_tokens=20, ignore_eos=True, **way)
            assert (len(final.ids), final.finish_reason) == (20, "length")
            _, final = await whole(here, prompt="hello!", max_tokens=20, **way)
            assert (len(final.ids), final.finish_reason) == (first, "stop")

    run(test, script, manifest={"eos_ids": tuple(ends)})


@pytest.mark.parametrize("stop", [None, ["c"]])
def test_what_is_delivered_is_what_is_counted(stop: list[str] | None) -> None:
    """A15, A17: tokens, logprobs, usage and the decoder's own figure, with drafts that hold in part."""
    script = repeating(*b"abcdefgh")

    async def test(here: Pipeline) -> None:
        total = 0
        async with here.transport.subscribe(SUBJECTS.heartbeats) as heartbeats:
            for max_tokens, way in ((m, w) for m in (1, 2, 3, 5, 8, 11) for w in WAYS):
                fields = {"prompt": "hello!", "max_tokens": max_tokens, "stop": stop, "logprobs": True}
                tokens, final = await whole(here, **{k: v for k, v in fields.items() if v is not None}, **way)
                wanted = min(max_tokens, 3) if stop else max_tokens
                delivered = [token for event in tokens for token in event.ids]
                assert delivered == list(final.ids) == said(script, b"hello!", wanted)
                assert len(final.logprobs) == sum(len(event.logprobs) for event in tokens) == wanted
                assert final.usage.completion_tokens == wanted
                total += wanted
            while (beat := orjson.loads((await heartbeats.get()).data)).get("tokens") != total:
                assert beat.get("tokens", 0) <= total

    def draft(history: Sequence[int]) -> int:
        return (script(history) + (len(history) % 3 == 0)) % VOCABULARY

    run(test, script, draft=draft, heartbeat=0.02)


PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_count_with_drafts_as_without_and_either_sign_has_its_own_text(name: str) -> None:
    """B10."""
    repetition = name == "repetition_penalty"
    values = (0.5, 2.0) if repetition else (-2.0, 2.0)
    warm = {"temperature": 0.15, "seed": 5} if repetition else {}  # dividing never changes which is the likeliest here
    script = repeating(*b"hello: ", behind=13)

    async def test(here: Pipeline) -> None:
        texts: list[str] = []
        for value in values:
            asked = {"prompt": "repeat hello:", "max_tokens": 8, name: value, **warm}
            finals = [(await whole(here, **asked, **way))[1] for way in WAYS]
            assert len({final.ids for final in finals}) == 1
            texts.append(finals[0].text)
        assert texts[0] != texts[1]

    run(test, script)


@pytest.mark.parametrize("temperature", [0.0, 0.15])
def test_logprobs_are_those_of_the_target_whoever_drafts(temperature: float) -> None:
    """B12: a prompt that repeats itself, so that many drafts hold."""
    script = repeating(*b"ab", behind=10)
    asked = {"prompt": "abababab" + "ab", "max_tokens": 30, "logprobs": True, "top_logprobs": 3}
    likely = 1 - np.log(np.e + VOCABULARY - 1)

    async def test(here: Pipeline) -> None:
        found = [(await whole(here, **asked, temperature=temperature, seed=3, **way))[1] for way in WAYS]
        for final in found:
            assert final.logprobs == found[0].logprobs
            assert len(final.logprobs) == len(final.ids) == 30
            history = list(b"ababababab")
            for one in final.logprobs:
                assert (one.top[0].id, one.top[0].logprob) == (script(history), pytest.approx(likely, abs=1e-5))
                assert one.logprob == pytest.approx(likely - (one.id != script(history)), abs=1e-5)
                history.append(one.id)
        assert sum(final.usage.accepted_tokens for final in found) > (5 if temperature else 50)

    run(test, script)


def test_a_seed_gives_the_same_text_every_time_and_another_one_another() -> None:
    """B13: five times, and five times beside three others."""

    async def test(here: Pipeline) -> None:
        async def ask(seed: int, prompt: str = "hello") -> str:
            return (await here.client.complete(prompt=prompt, max_tokens=10, temperature=1.5, seed=seed)).text

        alone = [await ask(42) for _ in range(5)]
        others = [ask(seed, "another prompt") for seed in (1, 2, 3)]
        beside, _ = await asyncio.gather(asyncio.gather(*(ask(42) for _ in range(5))), asyncio.gather(*others))
        assert set(alone) == set(beside) == {alone[0]}
        assert await ask(43) != alone[0]

    run(test)


def test_bytes_that_are_no_text_harm_nobody() -> None:
    """A04: three answers of random bytes beside one of letters."""
    noise = [0xE3, 0x27, 0xFF, 0x80, 0xC0, 0x41, 0xF0, 0x9F]

    def script(history: Sequence[int]) -> int:
        return noise[len(history) % 8] if history[0] == ord("!") else next_token(history)

    async def test(here: Pipeline) -> None:
        noisy = [here.client.complete(prompt=f"!{i}", max_tokens=60) for i in range(3)]
        *finals, calm = await asyncio.gather(*noisy, here.client.complete(prompt="why", max_tokens=60))
        assert calm.text == answer_to("why", 60)
        for final in finals:
            assert final.text == bytes(final.ids).decode(errors="replace")
            assert "\ufffd" in final.text

    run(test, script, manifest={"eos_ids": (0,)})


@pytest.mark.parametrize("length", [127, 128, 129, 5000])
def test_a_prompt_as_long_as_the_context_is_refused_before_anything_else_and_with_both_numbers(length: int) -> None:
    """D01, D02."""

    async def test(here: Pipeline) -> None:
        if length < 128:
            final = await here.client.complete(prompt="x" * length)
            assert (len(final.ids), final.finish_reason) == (1, "length")
        else:
            code, message = await refused(here, orjson.dumps({"prompt": "x" * length}))
            assert code == ErrorCode.PROMPT_TOO_LONG
            assert f" {length} " in message and " 127" in message and "-" not in message
        assert (await here.client.complete(prompt="why", max_tokens=3)).text == answer_to("why", 3)

    run(test, manifest={"context_length": 128})


EMPTY = ({"prompt": ""}, {"prompt": [""]}, {"prompt": []}, {"prompt": [[]]}, {"messages": []})
BROKEN = (b"{:", b"", b'{"prompt": "x', b'{"prompt": "x"} {', b"\xff\xff", b'{"prompt": "\\ud800"}', b'{"a":' * 9000)
AMOUNTS = ("0", "-1", "1.5", '"10"', "true", "1e400", "[]")
BAD = (
    *(orjson.dumps(fields) for fields in EMPTY),
    *BROKEN,
    *(b'{"prompt": "x", "max_tokens": %s}' % amount.encode() for amount in AMOUNTS),
)


def test_bad_requests_are_answered_with_the_reason_while_a_long_one_goes_on() -> None:
    """D03, D04, D05."""

    async def test(here: Pipeline) -> None:
        running = asyncio.create_task(here.client.complete(prompt=LONG, max_tokens=140))
        for data in BAD:
            code, message = await refused(here, data)
            assert code == ErrorCode.INVALID_PROMPT and message, data
        assert (await running).text == answer_to(LONG, 140)
        assert (await here.client.complete(prompt="why", max_tokens=3)).text == answer_to("why", 3)

    run(test)


@pytest.mark.parametrize("amount", [None, 190, 10**12])
def test_an_answer_never_gets_longer_than_the_context(amount: int | None) -> None:
    """D04, D36: no limit, or one beyond the context, of a model that never ends."""

    async def test(here: Pipeline) -> None:
        asked = {"prompt": "x" * 40, "max_tokens": amount}
        final = await here.client.complete(**{k: v for k, v in asked.items() if v is not None})
        assert (len(final.ids), final.finish_reason) == (24, "length")
        assert here.decoders[0].running == 0

    run(test, manifest={"context_length": 64}, default_max_tokens=512)


def test_the_turn_that_does_not_fit_is_refused_and_the_chat_can_go_on_shorter() -> None:
    """D37: eight turns of forty tokens in a context of two hundred."""

    async def test(here: Pipeline) -> None:
        text, answered = "", 0
        with pytest.raises(PromptError) as caught:
            for turn in range(8):
                text += f"{turn} and a question"
                final = await here.client.complete(messages=[{"role": "user", "content": text}], max_tokens=40)
                assert final.text == answer_to(text, len(final.ids))
                text, answered = text + final.text, answered + 1
        assert caught.value.code is ErrorCode.PROMPT_TOO_LONG
        assert answered >= 3
        assert (await here.client.complete(prompt=text[-50:], max_tokens=9)).text == answer_to(text[-50:], 9)

    run(test)


@pytest.mark.parametrize("durable", [True, False])
def test_a_reader_who_falls_behind_misses_nothing_or_is_told_and_slows_nobody_down(durable: bool) -> None:
    """D38: its inbox holds three events, and it reads one before all of its answer and its neighbour's are there."""

    async def test(here: Pipeline) -> None:
        narrow = NarrowTransport(here.transport, limit=3)
        slow = Client(cast("Transport", narrow), SUBJECTS)
        fields: dict[str, Any] = {"id": "slow", "prompt": "why", "max_tokens": 150, "draft": "none"}  # 150 events
        reading = slow.generate(**fields) if durable else slow.generate_now(**fields)
        async with here.transport.subscribe(SUBJECTS.tokens("slow")) as observer:
            events = [await anext(reading)]
            assert (await here.client.complete(prompt="who", max_tokens=150)).text == answer_to("who", 150)
            while isinstance(decode_event((await observer.get()).data), TokenEvent):
                pass
        if durable:
            events += [event async for event in reading]
            assert [event.seq for event in events] == list(range(len(events)))
            assert "".join(event.text for event in events[:-1]) == events[-1].text == answer_to("why", 150)
        else:
            with pytest.raises(BrokerError, match="faster than"):
                async for _ in reading:
                    pass
        assert narrow.dropped > 100

    run(test)


def test_prompts_larger_than_a_message_go_in_pieces() -> None:
    """D39: the broker takes frames of some dozens of tokens; the connection stays up and neighbours notice nothing."""
    prompts = ["x" * 10, "y" * 150, "why"]

    async def test(here: Pipeline) -> None:
        finals = await asyncio.gather(*(here.client.complete(prompt=prompt, max_tokens=20) for prompt in prompts))
        assert [final.text for final in finals] == [answer_to(prompt, 20) for prompt in prompts]
        assert here.decoders[0].replays == 0

    run(test, max_payload=4096 + 1024, prefill_tokens=400)


def test_a_stage_that_fails_once_costs_a_replay_and_nothing_else() -> None:
    """D24: a device's error in one step, and in the next epoch a result that is no frame."""
    calls = count()

    def script(history: Sequence[int]) -> int:
        if next(calls) == 30:
            raise DeviceError("the device hiccups")
        return next_token(history)

    async def test(here: Pipeline) -> None:
        garbage = iter([b"SHRD garbage"])

        def intercept(subject: str, data: bytes) -> list[bytes]:
            done = subject.startswith(f"{SUBJECTS.root}.done.") and here.decoders[0].replays == 1
            return [next(garbage, data) if done else data]

        here.broker.intercept = intercept
        finals = await asyncio.gather(*(here.client.complete(prompt=p, max_tokens=60) for p in ("why", "x", LONG)))
        assert [final.text for final in finals] == [answer_to(p, 60) for p in ("why", "x", LONG)]
        assert here.decoders[0].replays >= 2
        assert (await here.client.complete(prompt="who", max_tokens=3)).text == answer_to("who", 3)

    run(test, script, draft=next_token)


def test_steps_that_come_out_of_order_twice_or_from_an_epoch_before_change_no_answer() -> None:
    """D27: on the way to the second stage; each costs a new epoch at most."""
    kept: list[bytes] = []

    async def test(here: Pipeline) -> None:
        def intercept(subject: str, data: bytes) -> list[bytes]:
            if not subject.startswith(f"{SUBJECTS.root}.stage.1."):
                return [data]
            kept.append(data)
            match len(kept):
                case 9:
                    return []
                case 10:
                    return [data, kept[8]]
                case 25:
                    return [data, data]
                case 40:
                    return [kept[3], data]
            return [data]

        here.broker.intercept = intercept
        prompts = ("why", "x", LONG)
        finals = await asyncio.gather(*(here.client.complete(prompt=p, max_tokens=60, draft="none") for p in prompts))
        assert [final.text for final in finals] == [answer_to(p, 60) for p in prompts]
        assert here.decoders[0].replays >= 1 and len(kept) > 40

    run(test)


def test_a_stage_that_hangs_for_one_step_costs_a_replay_and_nothing_else() -> None:
    """D30: longer than a step may take; the worker lives and takes the next epoch."""
    gate, calls = threading.Event(), count()

    def script(history: Sequence[int]) -> int:
        if next(calls) == 20:
            gate.wait(10)
        return next_token(history)

    async def test(here: Pipeline) -> None:
        def intercept(subject: str, data: bytes) -> list[bytes]:
            if subject.startswith(f"{SUBJECTS.root}.control."):  # the decoder has given that step up
                gate.set()
            return [data]

        here.broker.intercept = intercept
        final = await here.client.complete(prompt="why", max_tokens=40)
        assert final.text == answer_to("why", 40)
        assert here.decoders[0].replays >= 1

    run(test, script, draft=next_token, step_timeout=0.05)


def test_many_requests_leave_nothing_open() -> None:
    """D33: answered, refused and cancelled ones."""

    async def test(here: Pipeline) -> None:
        for batch in range(6):
            asked = [here.client.complete(prompt=f"{batch} {i}", max_tokens=1) for i in range(6)]
            wrong = [here.client.complete(prompt="x", n=0), here.client.complete(prompt="x" * 300)]
            cancelled = here.client.generate(id=f"c{batch}", prompt="why", max_tokens=150)
            await anext(cancelled)
            await here.client.cancel(f"c{batch}")
            *_, final = [event async for event in cancelled]
            assert isinstance(final, FinalEvent) and final.finish_reason == "cancelled"
            await asyncio.gather(*asked, *wrong, return_exceptions=True)
        async with here.transport.subscribe(SUBJECTS.heartbeats) as heartbeats:
            while (beat := orjson.loads((await heartbeats.get()).data)).get("running") is None:
                pass
        assert (beat["running"], beat["waiting"]) == (0, 0)
        assert [store.depth().pending + store.depth().working for store in here.broker.queues.values()] == [0]
        mine = [s for s in here.broker.subscriptions if s.owner is here.transport]
        assert not mine

    run(test)


def test_the_same_id_again_is_refused_and_a_third_time_is_fine() -> None:
    """D14: while the first is being answered, through the queue and by request and reply; another one runs beside."""

    async def test(here: Pipeline) -> None:
        other = asyncio.create_task(here.client.complete(prompt=LONG, max_tokens=120))
        first = here.client.generate(id="twin", prompt="why", max_tokens=100)
        await anext(first)
        code, _ = await refused(here, orjson.dumps({"id": "twin", "prompt": "x"}))
        assert code == ErrorCode.DUPLICATE_ID
        *_, final = [event async for event in first]
        assert (final.text, (await other).text) == (answer_to("why", 100), answer_to(LONG, 120))
        again = [event async for event in here.client.generate_now(id="twin", prompt="who", max_tokens=5)]
        assert again[-1].text == answer_to("who", 5)

    run(test)


def test_no_end_token_is_in_the_text() -> None:
    """A12, A18."""
    script = repeating(*b"hi", EOS)

    async def test(here: Pipeline) -> None:
        for way in WAYS:
            tokens, final = await whole(here, prompt="hello!", max_tokens=9, **way)
            assert ("".join(event.text for event in tokens), final.text) == ("hi", "hi")
            assert (final.ids, final.finish_reason) == ((*b"hi", EOS), "stop")

    run(test, script)
