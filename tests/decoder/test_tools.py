"""How a model is told of tools, and the grammar of answers that call them."""

import json
from typing import Any

import pytest

from engine.contract.errors import PromptError
from engine.contract.ids import RequestId
from engine.contract.prompt import PromptRequest, prompt_from_fields
from engine.decoder.admission import Admission
from engine.decoder.constraint import ConstraintCompiler
from engine.decoder.tools import CallFormat, Dialect, call_format, dialect_of, tell
from tests.decoder.local_pipeline import ByteTokenizer
from tests.manifests import VOCABULARY, manifest

EOS = 260
CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"]}
SCHEMA = {**CITY, "additionalProperties": False, "$defs": {"city": {"type": "string", "pattern": "^[A-Z]{2}$"}}}
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "time", "description": "What time it is."}}
HI: list[Any] = [{"role": "user", "content": "hi"}]
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "time", "arguments": '{"a": 1}'}}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": "noon"}
QWEN = "{%- if tools %}{{ tools }}<tool_call>{{ x }}</tool_call>{%- endif %}{{ messages }}"
LLAMA = '{%- if tools is not none %}Answer {"name": function name, "parameters": dictionary of them}{%- endif %}'


class Bytes(ByteTokenizer):
    """With more tokens than bytes: an end."""

    def text_bytes(self) -> list[bytes]:
        return [*(bytes([i]) for i in range(256)), *[b""] * (VOCABULARY - 256)]


@pytest.fixture(scope="module")
def compiler() -> ConstraintCompiler:
    return ConstraintCompiler(Bytes(), vocabulary=VOCABULARY + 20, eos_ids=[EOS])


def asked(**fields: Any) -> PromptRequest:
    return prompt_from_fields({"messages": HI, "tools": [WEATHER, TIME], **fields})


def strict(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": True}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def tagged(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


W, T = '{"name": "weather", "arguments": {"city": "NY"}}', '{"name": "time", "arguments": {}}'
WRONG = W.replace("NY", "ny")
BARE = W.replace("arguments", "parameters")


def keeps(compiler: ConstraintCompiler, wanted: CallFormat, text: str) -> bool:
    """Whether it is a whole answer of that form."""
    constraint, data = compiler.constraint(wanted), list(text.encode())
    if len(constraint.filter(data)) < len(data):
        return False
    constraint.accept(data)
    return constraint.filter([EOS]) == (EOS,)


@pytest.mark.parametrize(
    ("template", "dialect"),
    [
        (QWEN, "hermes"),
        (LLAMA, "llama"),
        ("{% for message in messages %}{{ message }}{% endfor %}", "told"),
        ("{{ messages }} and no <tool_call> tools", "told"),
        (QWEN.replace("{{ x }}", "<function=x>"), "told"),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}", "told"),
        ("", "told"),
    ],
)
def test_a_template_says_how_its_model_calls(template: str, dialect: Dialect) -> None:
    assert dialect_of(template) == dialect


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        ({"tool_choice": "required"}, [tagged(W), tagged(T, W)], ["", "hi", tagged(WRONG), W, tagged(W) + " hi"]),
        ({"tool_choice": named("time")}, [tagged(T)], [tagged(W), tagged(T, T), "hi"]),
        ({"tool_choice": "required", "parallel_tool_calls": False}, [tagged(W)], [tagged(T, W)]),
        (
            {"tools": [strict(WEATHER), TIME]},
            ["", "a < b <tool", tagged(W), f"Look:\n{tagged(W, T)}", f"{tagged(T)}\nthen {tagged(W)} so"],
            [tagged(WRONG), f"a {tagged(WRONG)}", "a <tool_call>b", tagged(W.replace("weather", "weathers"))],
        ),
        ({"parallel_tool_calls": False}, ["hi", f"hi {tagged(WRONG)} there"], [tagged(W, T)]),
    ],
)
def test_calls_keep_to_the_form_that_was_asked_for(
    compiler: ConstraintCompiler, fields: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    wanted = call_format(asked(**fields), "hermes")
    assert wanted
    assert [text for text in right if not keeps(compiler, wanted, text)] == []
    assert [text for text in wrong if keeps(compiler, wanted, text)] == []


def test_llama_writes_one_bare_call_or_text(compiler: ConstraintCompiler) -> None:
    must = call_format(asked(tool_choice="required"), "llama")
    may = call_format(asked(tools=[strict(WEATHER)]), "llama")
    assert must and may
    assert keeps(compiler, must, BARE) and not keeps(compiler, must, W) and not keeps(compiler, must, "hi")
    assert keeps(compiler, may, BARE) and keeps(compiler, may, "hi {") and keeps(compiler, may, "")
    assert not keeps(compiler, may, BARE.replace("NY", "x")) and not keeps(compiler, may, BARE + BARE)


def test_free_text_stays_free() -> None:
    for fields in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"tools": []}):
        assert call_format(asked(**fields), "hermes") is None


def test_a_schema_that_cannot_be_kept_to_is_refused_by_name_if_it_must_be(compiler: ConstraintCompiler) -> None:
    odd: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"not": {"type": "null"}}}}
    wanted = call_format(asked(tools=[odd], tool_choice="required"), "hermes")
    assert wanted and compiler.constraint(wanted)
    wanted = call_format(asked(tools=[strict(odd)]), "hermes")
    assert wanted
    with pytest.raises(PromptError, match="'tools' cannot be kept to") as caught:
        compiler.constraint(wanted)
    assert caught.value.field == "tools"


def test_a_template_without_tools_is_told_by_the_system_message() -> None:
    messages = [*HI, {"role": "assistant", "tool_calls": [CALL, CALL]}, RESULT, RESULT, *HI]
    request = prompt_from_fields({"messages": messages, "tools": [TIME]})
    told = tell(request.messages or (), request.tools)
    assert [one["role"] for one in told] == ["system", "user", "assistant", "user", "user"]
    assert json.dumps(TIME["function"]["name"]) in told[0]["content"] and "What time it is." in told[0]["content"]
    assert told[2]["content"] == tagged(*['{"name": "time", "arguments": {"a": 1}}'] * 2)
    assert told[3]["content"] == "<tool_response>\nnoon\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
    system = tell([{"role": "system", "content": "Be brief."}, *HI], request.tools)
    assert system[0]["content"].startswith("Be brief.\n\nYou can call") and len(system) == 2
    assert tell(HI, ()) == HI


def test_a_template_gets_tools_calls_and_results() -> None:
    """D09."""
    seen: list[Any] = []

    class Seen(ByteTokenizer):
        chat_template = QWEN

        def chat(self, messages: Any, tools: Any = ()) -> str:
            seen[:] = [list(messages), list(tools)]
            return "x"

    messages = [*HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT]
    admission = Admission(manifest(), Seen(), 10)
    request = prompt_from_fields({"messages": messages, "tools": [TIME]})
    admission.choices(request, RequestId("r"), 0.0)
    assert seen[0][1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "time", "arguments": {"a": 1}}}],
    }
    assert seen[0][2] == RESULT
    assert seen[1][0]["function"] == {**TIME["function"], "parameters": {"type": "object", "properties": {}}}
    admission.choices(prompt_from_fields({"messages": HI, "tools": [TIME], "tool_choice": "none"}), RequestId("r"), 0.0)
    assert seen[1] == []


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("tools", {"tools": {}}),
        ("tools", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
        ("tools", {"tools": [named("a b")]}),
        ("tools", {"tools": [TIME, TIME]}),
        ("tools", {"tools": [{**TIME, "function": {"name": "x", "parameters": []}}]}),
        ("tools", {"tools": [{**TIME, "function": {"name": "x", "nonsense": 1}}]}),
        ("tools", {"tools": [named(f"x{at}") for at in range(129)]}),
        ("tool_choice", {"tool_choice": "any"}),
        ("tool_choice", {"tool_choice": "required", "tools": []}),
        ("tool_choice", {"tool_choice": named("nobody")}),
        ("parallel_tool_calls", {"parallel_tool_calls": 1}),
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("ignore_eos", {"ignore_eos": True}),
        ("messages", {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "x y"}}]}]}),
        ("messages", {"messages": [{"role": "assistant", "tool_calls": "x"}]}),
    ],
)
def test_what_is_wrong_with_tools_is_named(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(PromptError) as caught:
        asked(**fields)
    assert caught.value.field.partition("[")[0] == field
