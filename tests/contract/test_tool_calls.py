"""Calls in the text of an answer: whole, and in pieces of every size."""

import pytest

from engine.contract.tool_calls import CallReader, Part, ToolCall, read_all

NAMES = ("weather", "add")
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
ADD = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": [2, "x"]}}</tool_call>'
KOELN, SUM = ToolCall("weather", '{"city": "Köln"}'), ToolCall("add", '{"a": 1, "b": [2, "x"]}')
BARE = '{"name": "weather", "parameters": {"city": "Köln"}}'
TAGS = '{"name": "add", "arguments": {"a": "</tool_call> and <tool_call>"}}'


def pieces(text: str, size: int) -> list[Part]:
    reader = CallReader(NAMES)
    parts = [part for at in range(0, len(text), size) for part in reader.feed(text[at : at + size])]
    return parts + reader.close()


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        ("No call: a < b, 3 <tools.", "No call: a < b, 3 <tools.", []),
        (" kept \n", " kept \n", []),
        ("", "", []),
        (WEATHER, "", [KOELN]),
        (f"{WEATHER}\n{ADD}\n", "", [KOELN, SUM]),
        (f"Let me look.\n\n{WEATHER}", "Let me look.", [KOELN]),
        (f"{WEATHER}\nand that is all ", "\nand that is all ", [KOELN]),
        (f"<think>\n{{}}</think>\n{ADD}", "<think>\n{}</think>", [SUM]),
        (WEATHER.removesuffix("</tool_call>"), "", [KOELN]),
        (WEATHER.removesuffix("}\n</tool_call>"), WEATHER.removesuffix("}\n</tool_call>"), []),
        (f"<tool_call>[{BARE}, {BARE}]</tool_call>", "", [KOELN, KOELN]),
        (f"<tool_call>{TAGS}</tool_call>", "", [ToolCall("add", '{"a": "</tool_call> and <tool_call>"}')]),
        (f"<tool_call>nothing</tool_call>{ADD}", "<tool_call>nothing</tool_call>", [SUM]),
        ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
        ('<tool_call>{"name": "x", "arguments": [1]}</tool_call>',) * 2 + ([],),
        ('<tool_call>{"name": "x"}</tool_call>', "", [ToolCall("x", "{}")]),
        ('<tool_call>{"name": "x", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [ToolCall("x", '{"a": 1}')]),
        (BARE, "", [KOELN]),
        (f" {BARE}; {BARE}\n", "", [KOELN, KOELN]),
        ('{"type": "function", "function": {"name": "add", "arguments": {}}}', "", [ToolCall("add", "{}")]),
        ('{"name": "nobody", "parameters": {}}', '{"name": "nobody", "parameters": {}}', []),
        ('{"name": "weather", "par', '{"name": "weather", "par', []),
        ('{"answer": 42}', '{"answer": 42}', []),
        (f"Text first: {BARE}", f"Text first: {BARE}", []),
        ("{", "{", []),
    ],
)
def test_text_and_calls_are_told_apart_whole_and_in_pieces(text: str, shown: str, calls: list[ToolCall]) -> None:
    assert read_all(text, NAMES) == (shown, calls)
    for size in (1, 2, 3, 7, 20):
        parts = pieces(text, size)
        assert "".join(part for part in parts if isinstance(part, str)) == shown
        assert [part for part in parts if isinstance(part, ToolCall)] == calls


def test_text_does_not_wait_for_the_end() -> None:
    reader = CallReader(NAMES)
    assert [reader.feed(text) for text in ("A ", "b <", "c", ' {"a', "x")] == [["A"], [" b"], [" <c"], [' {"a'], ["x"]]
    reader = CallReader(NAMES)
    assert [reader.feed(text) for text in ("{", '"an', "s", "wer")] == [[], ['{"an'], ["s"], ["wer"]]


def test_a_call_is_out_as_soon_as_it_is_whole() -> None:
    reader = CallReader(NAMES)
    assert reader.feed(WEATHER[:-1]) == [] and reader.feed(">") == [KOELN]
    assert reader.feed(ADD) == [SUM] and reader.close() == []
