"""The official client against a gateway, a decoder and workers; the shards are arithmetic, the sockets are real."""

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from engine.gateway.keys import new_key
from tests.decoder.local_pipeline import answer_to, pipeline
from tests.gateway.serving import Served, gateway, serve

pytestmark = pytest.mark.pipelines
HI: list[Any] = [{"role": "user", "content": "hello"}]
CHAT: dict[str, Any] = {"model": "model", "messages": HI, "max_tokens": 6}


def test_an_answer_is_the_same_streamed_and_whole() -> None:
    """E01, E03: one reason to end a choice, one chunk with the sums, none before."""

    async def test(served: Served) -> None:
        client = served.client()
        whole = await client.chat.completions.create(**CHAT)
        assert whole.choices[0].message.content == answer_to("hello", 6)
        assert whole.choices[0].finish_reason == "length"
        stream = await client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == answer_to("hello", 6)
        reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
        assert [reason for reason in reasons if reason] == ["length"] and reasons[-1] == "length"
        assert chunks[-1].choices == [] and chunks[-1].usage is not None and whole.usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 6
        assert all(chunk.usage is None for chunk in chunks[:-1])
        assert chunks[-1].system_fingerprint == chunks[-2].system_fingerprint == whole.system_fingerprint
        assert whole.system_fingerprint and "+" not in whole.system_fingerprint

    serve(test)


def test_a_stop_text_ends_with_stop_and_is_not_shown() -> None:
    """E01, E12."""

    async def test(served: Served) -> None:
        text = answer_to("hello", 6)
        for stop in (text[3:5], [text[3:5]]):
            stream = await served.client().chat.completions.create(**CHAT, stop=stop, stream=True)
            chunks = [chunk async for chunk in stream]
            assert "".join(c.choices[0].delta.content or "" for c in chunks) == text[:3]
            assert chunks[-1].choices[0].finish_reason == "stop"

    serve(test)


def test_several_answers_end_each_with_their_own_reason() -> None:
    """E01."""

    async def test(served: Served) -> None:
        fields: dict[str, Any] = {**CHAT, "n": 2, "temperature": 1.0, "seed": 3}
        whole = await served.client().chat.completions.create(**fields)
        texts, ends = ["", ""], ["", ""]
        async for chunk in await served.client().chat.completions.create(**fields, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                ends[choice.index] += choice.finish_reason or ""
        assert texts == [choice.message.content for choice in whole.choices]
        assert ends == ["length", "length"]

    serve(test)


def test_logprobs_come_in_the_shape_of_their_endpoint() -> None:
    """E05, E06."""

    async def test(served: Served) -> None:
        client = served.client()
        bare = (await client.chat.completions.create(**CHAT, logprobs=True)).choices[0].logprobs
        assert bare and bare.content and [one.top_logprobs for one in bare.content] == [[]] * 6
        assert "".join(one.token for one in bare.content) == answer_to("hello", 6)
        two = (await client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)).choices[0].logprobs
        assert two and two.content and {len(one.top_logprobs) for one in two.content} == {2}
        assert two.content[0].bytes == list(two.content[0].token.encode())
        asked: dict[str, Any] = {"model": "model", "prompt": "hello", "max_tokens": 6, "logprobs": 0}
        zero = (await client.completions.create(**asked)).choices[0].logprobs
        assert zero and zero.tokens == list(answer_to("hello", 6)) and zero.text_offset == list(range(6))
        assert zero.token_logprobs and len(zero.token_logprobs) == 6
        assert zero.top_logprobs == [{}] * 6
        streamed: list[int] = []
        async for chunk in await client.completions.create(**asked, stream=True):
            if chunk.choices[0].logprobs:
                streamed += chunk.choices[0].logprobs.text_offset or []
        assert streamed == zero.text_offset

    serve(test)


@pytest.mark.parametrize(
    ("changes", "status", "code", "param"),
    [
        ({"model": "other"}, 404, "model_not_found", "model"),
        ({"temperature": -1}, 400, "invalid_value", "temperature"),
        ({"functions": []}, 400, "unsupported_parameter", "functions"),
        ({"nonsense": 1}, 400, "unknown_parameter", "nonsense"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, 400, "context_length_exceeded", "messages"),
        ({"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 70_000}]}, 413, "request_too_large", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_has_a_status_a_code_and_a_name(
    changes: dict[str, Any], status: int, code: str, param: str | None, stream: bool
) -> None:
    """E10, E11, E14, D01, D02."""

    async def test(served: Served) -> None:
        async with httpx.AsyncClient(base_url=served.url) as client:
            reply = await client.post("/v1/chat/completions", json={**CHAT, **changes, "stream": stream})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (status, code, param)
        if code == "context_length_exceeded":
            assert "300 tokens" in error["message"] and "199" in error["message"]

    serve(test)


def test_other_mistakes_are_error_objects_too() -> None:
    """D05, E10."""

    async def test(served: Served) -> None:
        async with httpx.AsyncClient(base_url=served.url) as client:
            json_type = {"content-type": "application/json"}
            replies = [
                await client.post("/v1/chat/completions", content=b"{", headers=json_type),
                await client.post("/v1/chat/completions", content=b"{}", headers={"content-type": "text/plain"}),
                await client.post("/v1/embeddings", json={"model": "model", "input": "x"}),
                await client.get("/v1/chat/completions"),
                await client.get("/v1/nothing"),
                await client.get("/v1/models/other"),
            ]
        assert [reply.status_code for reply in replies] == [400, 415, 404, 405, 404, 404]
        assert all({"message", "type", "param", "code"} == set(reply.json()["error"]) for reply in replies)
        assert "embeddings" in replies[2].json()["error"]["message"]

    serve(test)


def test_models_are_those_that_are_heard() -> None:
    async def test(served: Served) -> None:
        assert [model.id async for model in served.client().models.list()] == ["model"]
        assert (await served.client().models.retrieve("model")).owned_by == "shardline"

    serve(test)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_its_request(stream: bool) -> None:
    """D17: the others do not notice, and the place is free again."""

    async def test(served: Served) -> None:
        fields = {**CHAT, "max_tokens": 190, "stream": stream, "n": 4}
        async with httpx.AsyncClient(base_url=served.url) as client:
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=fields))
            await served.busy()
            asking.cancel()
        await served.idle()
        steps = served.here.decoders[-1]._steps  # type: ignore[reportPrivateUsage]
        assert steps < 190
        whole = await served.client().chat.completions.create(**CHAT)
        assert whole.choices[0].message.content == answer_to("hello", 6)

    serve(test)


def test_all_clients_that_go_away_at_once_leave_nothing_running() -> None:
    """D22."""

    async def test(served: Served) -> None:
        fields = {**CHAT, "max_tokens": 190}
        async with httpx.AsyncClient(base_url=served.url) as client:
            posts = [client.post("/v1/chat/completions", json={**fields, "stream": i % 2 == 0}) for i in range(8)]
            asking = [asyncio.create_task(post) for post in posts]
            while served.here.decoders[-1].open_requests < len(asking):  # noqa: ASYNC110  nothing signals it
                await asyncio.sleep(0)
            for one in asking:
                one.cancel()
        await served.idle()
        decoder = served.here.decoders[-1]
        assert (decoder.running, decoder.open_requests) == (0, 0)
        assert decoder._steps < 190  # type: ignore[reportPrivateUsage]
        whole = await served.client().chat.completions.create(**CHAT)
        assert whole.choices[0].message.content == answer_to("hello", 6)

    serve(test)


def test_a_full_house_is_429_and_says_when_to_come_again() -> None:
    async def test(served: Served) -> None:
        long = {**CHAT, "max_tokens": 190}
        first = asyncio.create_task(served.client().chat.completions.create(**long))
        await served.busy()
        with pytest.raises(openai.RateLimitError) as caught:
            await served.client().chat.completions.create(**CHAT)
        assert caught.value.code == "overloaded" and caught.value.response.headers["retry-after"] == "2"
        await first

    serve(test, max_running=1, max_waiting=0)


def test_without_a_pipeline_the_answer_is_503() -> None:
    """D23: health says so too."""

    async def main() -> None:
        async with pipeline(whole=False) as here, gateway(here) as served:
            with pytest.raises(openai.InternalServerError) as caught:
                await served.client().chat.completions.create(**CHAT)
            assert caught.value.status_code == 503 and "no decoder is heard" in str(caught.value)
            assert "retry-after" in caught.value.response.headers
            async with httpx.AsyncClient(base_url=served.url) as client:
                assert (await client.get("/healthz")).status_code == 503

    asyncio.run(main())


def test_health_turns_bad_by_silence_alone_and_good_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """D43: nobody says that the connection is gone; it is heard."""
    monkeypatch.setattr("engine.monitoring.depth.SUSPECT_SECONDS", 0.5)

    async def test(served: Served) -> None:
        async with httpx.AsyncClient(base_url=served.url) as http:
            assert (await http.get("/healthz")).status_code == (await http.get("/health")).status_code == 200
            served.here.broker.intercept = lambda subject, data: []
            while (answer := await http.get("/healthz")).status_code == 200:
                pass
            assert (answer.status_code, answer.json()["ok"]) == (503, False)
            assert "is heard" in answer.json()["models"]["model"]  # no decoder, or no stage: whose silence began first
            refused = await http.post("/v1/completions", json={"model": "model", "prompt": "x"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
            served.here.broker.intercept = None
            while (await http.get("/healthz")).status_code != 200:
                pass

    serve(test)


def test_forty_clients_that_go_at_once_make_room_for_forty_others() -> None:
    """D22: five times; the new ones are asked while the old ones are still being ended."""

    async def test(served: Served) -> None:
        client, host = served.client(), urlsplit(served.url)

        async def leave_in_the_middle(number: int) -> None:
            fields = {"model": "model", "prompt": f"long {number}", "max_tokens": 150, "stream": True}
            body = json.dumps(fields)
            about = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {host.netloc}\r\n{about}\r\n\r\n"
            reader, writer = await asyncio.open_connection(host.hostname, host.port)
            writer.write(f"{head}{body}".encode())
            await reader.readuntil(b"data: ")  # what it has been told so far is enough
            writer.close()
            await writer.wait_closed()

        for turn in range(5):
            await asyncio.gather(*map(leave_in_the_middle, range(40)))
            asked = [client.completions.create(model="model", prompt=f"{turn} {i}", max_tokens=4) for i in range(40)]
            texts = [whole.choices[0].text for whole in await asyncio.gather(*asked)]
            assert texts == [answer_to(f"{turn} {i}", 4) for i in range(40)]
        await served.idle()
        assert served.here.decoders[0].open_requests == 0
        assert (await client.completions.create(model="model", prompt="x", max_tokens=4)).usage is not None

    serve(test, max_waiting=200, gateway_options={"max_open": 200})


def test_an_answer_that_is_lost_in_the_middle_ends_with_an_error_not_with_stop() -> None:
    """E08: an error frame, no [DONE], and the official client raises."""

    async def test(served: Served) -> None:
        fields = {**CHAT, "max_tokens": 190, "stream": True}
        async with (
            httpx.AsyncClient(base_url=served.url, timeout=30) as client,
            client.stream("POST", "/v1/chat/completions", json=fields) as reply,
        ):
            lines = reply.aiter_lines()
            seen = [await anext(lines) for _ in range(8)]
            await served.here.kill(served.here.workers[1])
            seen += [line async for line in lines]
        frames = [json.loads(line.removeprefix("data: ")) for line in seen if line]
        assert frames[-1]["error"]["code"] == "unavailable"
        assert not any(choice["finish_reason"] for frame in frames[:-1] for choice in frame["choices"])
        with pytest.raises(openai.APIStatusError) as caught:
            await served.client().chat.completions.create(**CHAT)
        assert caught.value.status_code == 503

    serve(test, gateway_options={"patience": 0.0})


def test_an_answer_whose_decoder_is_lost_goes_on_at_another() -> None:
    """E08: no gap, nothing twice, and the same answer as without the loss."""
    greedy: dict[str, Any] = {**CHAT, "max_tokens": 180}
    drawn: dict[str, Any] = {**greedy, "n": 2, "temperature": 1.0, "seed": 7, "logprobs": True}

    async def test(served: Served) -> None:
        create = served.client().chat.completions.create
        calm = [await create(**asked) for asked in (greedy, drawn)]
        streams = [await create(**asked, stream=True) for asked in (greedy, drawn)]
        seen = [[await anext(stream) for _ in range(6)] for stream in streams]
        whole = asyncio.create_task(create(**drawn))
        while served.here.decoders[-1].open_requests < 3:  # noqa: ASYNC110  nothing signals it
            await asyncio.sleep(0)
        await served.here.kill(served.here.running[0])
        await served.here.start_decoder()
        for expected, stream, chunks in zip(calm, streams, seen, strict=True):
            chunks += [chunk async for chunk in stream]
            choices = [choice for chunk in chunks for choice in chunk.choices]
            for wanted in expected.choices:
                mine = [choice for choice in choices if choice.index == wanted.index]
                assert "".join(choice.delta.content or "" for choice in mine) == wanted.message.content
                assert [choice.finish_reason for choice in mine if choice.finish_reason] == ["length"]
        assert [one.model_dump() for one in (await whole).choices] == [one.model_dump() for one in calm[1].choices]
        assert served.here.decoders[-1].open_requests == 0

    serve(test)


def test_an_answer_goes_on_when_the_gateways_link_was_lost() -> None:
    async def test(served: Served) -> None:
        asked: dict[str, Any] = {**CHAT, "max_tokens": 180}
        calm = await served.client().chat.completions.create(**asked)
        stream = await served.client().chat.completions.create(**asked, stream=True)
        seen = [await anext(stream) for _ in range(6)]
        served.link.connected = False
        await served.idle()  # the rest of the answer is told to nobody
        served.link.connected = True
        seen += [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in seen) == calm.choices[0].message.content

    serve(test)


def test_keys_open_and_their_quota_closes(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    secret = new_key(path, "alice", per_minute=1)

    async def test(served: Served) -> None:
        with pytest.raises(openai.AuthenticationError) as refused:
            await served.client("sk-wrong").chat.completions.create(**CHAT)
        assert refused.value.code == "invalid_api_key"
        await served.client(secret).chat.completions.create(**CHAT)
        with pytest.raises(openai.RateLimitError) as caught:
            await served.client(secret).chat.completions.create(**CHAT)
        assert caught.value.code == "rate_limit_exceeded"
        async with httpx.AsyncClient(base_url=served.url) as client:
            assert (await client.get("/live")).status_code == 401
            assert (await client.get("/")).status_code == 200

    serve(test, gateway_options={"api_keys": path})


def test_a_page_that_is_open_does_not_keep_the_gateway_from_ending() -> None:
    async def main() -> None:
        async with httpx.AsyncClient() as client, pipeline() as here:
            async with gateway(here, grace=20.0) as served:
                reply = await client.send(client.build_request("GET", f"{served.url}/live"), stream=True)
                lines = reply.aiter_lines()
                assert await anext(lines) == "event: history"
                sample = [await anext(lines) for _ in range(3)][-1]
                assert json.loads(sample.removeprefix("data: "))["models"]["model"]["outage"] == ""
            assert [line async for line in lines][-1] == ""  # a whole event was the last one

    asyncio.run(asyncio.wait_for(main(), 15))


def test_two_clients_at_once_get_what_each_gets_alone() -> None:
    async def test(served: Served) -> None:
        asked = [{**CHAT, "messages": [{"role": "user", "content": text}]} for text in ("abc", "def", "ghi")]
        replies = await asyncio.gather(*(served.client().chat.completions.create(**one) for one in asked))
        assert [r.choices[0].message.content for r in replies] == [answer_to(t, 6) for t in ("abc", "def", "ghi")]

    serve(test)
