from dataclasses import replace

import pytest

from engine.contract.errors import ErrorCode, PromptError
from engine.contract.ids import RequestId
from engine.contract.prompt import (
    FinalEvent,
    Timings,
    TokenEvent,
    Usage,
    decode_event,
    encode_event,
    parse_prompt,
)


def test_plain_text_is_one_user_message() -> None:
    assert parse_prompt(b"Why?").messages == ({"role": "user", "content": "Why?"},)


def test_json_carries_openai_fields() -> None:
    request = parse_prompt(b'{"id": "a-1", "prompt": "x", "max_tokens": 5, "stop": "END", "ignore_eos": true}')
    assert (request.id, request.prompt, request.max_tokens, request.stop, request.ignore_eos) == (
        "a-1", "x", 5, ("END",), True,
    )  # fmt: skip


def test_priority_and_deadline_are_read_and_may_be_left_out() -> None:
    request = parse_prompt(b'{"prompt": "x", "priority": -9, "deadline_ms": 1}')
    assert (request.priority, request.deadline_ms) == (-9, 1)
    assert (parse_prompt(b"x").priority, parse_prompt(b"x").deadline_ms) == (0, None)


@pytest.mark.parametrize(
    ("data", "code", "names"),
    [
        (b"", ErrorCode.INVALID_PROMPT, "empty"),
        (b"  \n ", ErrorCode.INVALID_PROMPT, "empty"),
        (b"\xff\xfe", ErrorCode.INVALID_PROMPT, "UTF-8"),
        (b'{"prompt": ', ErrorCode.INVALID_PROMPT, "JSON"),
        (b'{"prompt": "x", "best_of": 3}', ErrorCode.UNKNOWN_FIELD, "'best_of'"),
        (b'{"max_tokens": 3}', ErrorCode.INVALID_PROMPT, "exactly one"),
        (b'{"prompt": "x", "messages": [{"role": "user", "content": "y"}]}', ErrorCode.INVALID_PROMPT, "exactly one"),
        (b'{"prompt": "x", "max_tokens": 0}', ErrorCode.INVALID_PROMPT, "'max_tokens'"),
        (b'{"prompt": "x", "max_tokens": true}', ErrorCode.INVALID_PROMPT, "'max_tokens'"),
        (b'{"prompt": "x", "max_tokens": 2.5}', ErrorCode.INVALID_PROMPT, "'max_tokens'"),
        (b'{"prompt": "x", "stop": []}', ErrorCode.INVALID_PROMPT, "'stop'"),
        (b'{"prompt": "x", "stop": [""]}', ErrorCode.INVALID_PROMPT, "'stop'"),
        (b'{"prompt": "x", "stop": 3}', ErrorCode.INVALID_PROMPT, "'stop'"),
        (b'{"prompt": "x", "ignore_eos": 1}', ErrorCode.INVALID_PROMPT, "'ignore_eos'"),
        (b'{"prompt": "x", "id": "a.b"}', ErrorCode.INVALID_PROMPT, "'id'"),
        (b'{"prompt": "x", "id": "*"}', ErrorCode.INVALID_PROMPT, "'id'"),
        (b'{"prompt": "x", "priority": 10}', ErrorCode.INVALID_PROMPT, "'priority'"),
        (b'{"prompt": "x", "priority": 0.5}', ErrorCode.INVALID_PROMPT, "'priority'"),
        (b'{"prompt": "x", "priority": true}', ErrorCode.INVALID_PROMPT, "'priority'"),
        (b'{"prompt": "x", "deadline_ms": 0}', ErrorCode.INVALID_PROMPT, "'deadline_ms'"),
        (b'{"messages": []}', ErrorCode.INVALID_PROMPT, "'messages'"),
        (b'{"messages": ["x"]}', ErrorCode.INVALID_PROMPT, "'messages[0]'"),
        (b'{"messages": [{"role": "user"}]}', ErrorCode.INVALID_PROMPT, "'messages[0]'"),
    ],
)
def test_a_bad_prompt_is_refused_by_name(data: bytes, code: ErrorCode, names: str) -> None:
    with pytest.raises(PromptError) as caught:
        parse_prompt(data)
    assert caught.value.code is code
    assert names in str(caught.value)


def test_events_survive_the_wire() -> None:
    token = TokenEvent(request=RequestId("r"), seq=0, text="é", ids=(4, 5))
    final = FinalEvent(
        request=RequestId("r"),
        seq=1,
        text="é",
        ids=(4, 5),
        finish_reason="stop",
        usage=Usage(prompt_tokens=3, completion_tokens=2),
        timings=Timings(queued=0.1, first_token=2.0, total=9.5),
    )
    assert [decode_event(encode_event(event)) for event in (token, final)] == [token, final]
    assert b"numerics" not in encode_event(token) + encode_event(final)
    told = [replace(token, numerics=("a1",)), replace(final, numerics=("a1", "b2"))]
    assert [decode_event(encode_event(event)) for event in told] == told
    assert [final.mixed, replace(final, numerics=("a1",)).mixed, told[1].mixed] == [False, False, True]


def test_a_final_event_says_so_and_has_no_error_without_one() -> None:
    final = FinalEvent(
        request=RequestId("r"),
        seq=0,
        text="",
        ids=(),
        finish_reason="length",
        usage=Usage(prompt_tokens=1, completion_tokens=0),
        timings=Timings(queued=0, first_token=0, total=0),
    )
    data = encode_event(final)
    assert b'"final":true' in data
    assert b"error" not in data
