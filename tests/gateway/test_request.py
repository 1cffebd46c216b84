"""What a body may hold, without any server."""

from typing import Any

import pytest

from engine.gateway.errors import ApiError
from engine.gateway.request import Asked, read_body, read_chat, read_completion

HI: list[Any] = [{"role": "user", "content": "Hi"}]


def chat(**fields: Any) -> Asked:
    return read_chat({"model": "m", "messages": HI, **fields})


def complete(**fields: Any) -> Asked:
    return read_completion({"model": "m", "prompt": "Hi", **fields})


def test_stop_may_be_a_text_a_list_or_nothing() -> None:
    """E12."""
    assert chat(stop="STOP").request.stop == chat(stop=["STOP"]).request.stop == ("STOP",)
    assert chat(stop=list("abcd")).request.stop == ("a", "b", "c", "d")
    assert chat(**read_body(b'{"stop": null}')).request.stop == chat(stop=[]).request.stop == ()


def test_usage_in_every_chunk_may_be_asked_for_and_comes_at_the_end() -> None:
    """E03. Load tools written for vLLM ask for it."""
    assert chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}).include_usage


def test_content_may_come_in_parts_and_a_developer_is_the_system() -> None:
    """D08."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = chat(messages=[{"role": "developer", "content": "c"}, {"role": "user", "content": parts}])
    assert asked.fields["messages"] == [{"role": "system", "content": "c"}, {"role": "user", "content": "ab"}]


def test_completions_count_their_logprobs_from_zero() -> None:
    """E06."""
    assert complete(logprobs=0).request.sampling == {"logprobs": True, "top_logprobs": 0}
    assert not complete().logprobs


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("temperature", {"temperature": -1}),
        ("top_p", {"top_p": 2}),
        ("n", {"n": 0}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 999}),
        ("logprobs", {"logprobs": 3}),
        ("messages", {"messages": "Hi"}),
        ("messages[0].content", {"messages": [{"role": "user", "content": None}]}),
        ("messages[0].role", {"messages": [{"role": "function", "content": "x"}]}),
        ("messages[0].name", {"messages": [{"role": "user", "content": "x", "name": "y"}]}),
        ("messages[0].content[0]", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_completion_tokens", {"max_completion_tokens": 0}),
        ("max_tokens", {"max_tokens": 3, "max_completion_tokens": 4}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("stream_options.x", {"stream": True, "stream_options": {"x": True}}),
        ("stream", {"stream": "yes"}),
        ("model", {"model": 3}),
        ("tools[0]", {"tools": [{"type": "function"}], "tool_choice": "required"}),
        ("messages[1].tool_calls", {"messages": [*HI, {"role": "user", "content": "x", "tool_calls": [1]}]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("functions", {"functions": []}),
        ("store", {"store": True}),
        ("echo", {"echo": False}),
        ("id", {"id": "mine"}),
        ("nonsense", {"nonsense": 1}),
        ("response_format.type", {"response_format": {"type": "xml"}}),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_name(param: str, fields: dict[str, Any]) -> None:
    """E10, E11, E16, D04, D09."""
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.body()["error"]["type"] == "invalid_request_error"
    assert param.split("[", maxsplit=1)[0] in str(caught.value)


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt", {"prompt": [1, 2]}),
        ("prompt", {"prompt": ["a", "b"]}),
        ("prompt", {"prompt": ""}),
        ("logprobs", {"logprobs": 999}),
        ("logprobs", {"logprobs": True}),
        ("best_of", {"best_of": 3}),
        ("echo", {"echo": True}),
        ("suffix", {"suffix": "x"}),
        ("messages", {"messages": HI}),
    ],
)
def test_completions_refuse_by_name_too(param: str, fields: dict[str, Any]) -> None:
    """E11, D03."""
    with pytest.raises(ApiError) as caught:
        complete(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"a": NaN}', b"[" * 5000])
def test_a_body_that_is_not_an_object_is_refused(data: bytes) -> None:
    """D05."""
    with pytest.raises(ApiError) as caught:
        read_body(data)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
