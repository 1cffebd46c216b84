import orjson
import pytest

from engine.contract.errors import ErrorCode, PromptError
from engine.contract.prompt import parse_prompt

ROLES = ("system", "user", "assistant")


def messages(*found: object) -> bytes:
    return orjson.dumps({"messages": found})


@pytest.mark.parametrize("role", ROLES)
def test_parts_of_text_are_joined_to_what_one_text_would_be(role: str) -> None:
    """D08."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parse_prompt(messages({"role": role, "content": parts})) == parse_prompt(
        messages({"role": role, "content": "ab"})
    )
    assert parse_prompt(messages({"role": role, "content": []})) == parse_prompt(
        messages({"role": role, "content": ""})
    )


def test_no_content_is_an_empty_text() -> None:
    """D09."""
    assert parse_prompt(messages({"role": "assistant", "content": None})) == parse_prompt(
        messages({"role": "assistant", "content": ""})
    )


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "'image_url'"),
        ({"role": "user", "content": [{"type": "text"}]}, "'messages[1].content[0].text'"),
        ({"role": "user", "content": ["a"]}, "'messages[1].content[0]'"),
        ({"role": "user", "content": 3}, "'messages[1].content'"),
        ({"role": "user"}, "'content'"),
        ({"content": "a"}, "'role'"),
        ({"role": 1, "content": "a"}, "'messages[1].role'"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "'messages[1].tool_calls'"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "'tool_calls'"),
        ("a", "'messages[1]'"),
    ],
)
def test_what_is_no_message_is_refused_by_its_place(message: object, names: str) -> None:
    """D08, D09: what cannot be served is never passed over."""
    with pytest.raises(PromptError) as caught:
        parse_prompt(messages({"role": "user", "content": "x"}, message))
    assert caught.value.code is ErrorCode.INVALID_PROMPT
    assert names in str(caught.value)
