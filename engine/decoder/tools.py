"""How a model is told of tools, and what an answer that calls them looks like. No I/O."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from engine.contract.prompt import PromptRequest
from engine.contract.tools import Tool

Dialect = Literal["hermes", "llama", "told"]
Messages = Sequence[Mapping[str, Any]]
_MENTIONS_TOOLS: Final = re.compile(r"\{[%{][^%}]*\btools\b")
_BARE_CALLS: Final = '"parameters": dictionary'  # what Llama's templates tell it to write
_XML_CALLS: Final = "<function="  # calls that are no JSON
_GUIDE: Final = """\
You can call these functions, described by JSON schemas, one a line:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as JSON between these tags, and nothing behind them:
<tool_call>
{{"name": "…", "arguments": {{…}}}}
</tool_call>
The result then comes between <tool_response> and </tool_response>. Call a function only where it helps."""


@cache
def dialect_of(template: str) -> Dialect:
    """How a chat template writes calls.

    "hermes": between <tool_call> tags; "llama": a bare object with "parameters"; "told": it knows no tools, or writes
    their calls in another way: then the system message describes them, and calls go between tags.
    """
    if not _MENTIONS_TOOLS.search(template):
        return "told"
    if "<tool_call>" in template and _XML_CALLS not in template:
        return "hermes"
    return "llama" if _BARE_CALLS in template else "told"


def tell(messages: Messages, tools: Sequence[Tool]) -> Messages:
    """Messages for a template that knows no tools: they are described, calls and results become texts."""
    told = [_spelled(message) for message in messages]
    merged: list[dict[str, Any]] = []
    for message, role in zip(told, (one["role"] for one in messages), strict=True):
        if role == "tool" and merged and merged[-1]["role"] == "user" and merged[-1].get("results"):
            merged[-1]["content"] += f"\n{message['content']}"
        else:
            merged.append({**message, "results": role == "tool"})
    plain = [{"role": message["role"], "content": message["content"]} for message in merged]
    if not tools:
        return plain
    guide = _GUIDE.format(tools="\n".join(json.dumps(tool.as_fields(), ensure_ascii=False) for tool in tools))
    if plain and plain[0]["role"] == "system":
        return [{"role": "system", "content": f"{plain[0]['content']}\n\n{guide}".lstrip()}, *plain[1:]]
    return [{"role": "system", "content": guide}, *plain]


def _spelled(message: Mapping[str, Any]) -> dict[str, str]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
    parts = [message["content"], *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)]
    return {"role": message["role"], "content": "\n".join(part for part in parts if part)}


@dataclass(frozen=True, slots=True)
class CallFormat:
    """What an answer must keep to: text, then calls of these tools."""

    llama: bool  # bare, and one at most
    tools: tuple[Tool, ...]
    required: bool  # at least one call, and no text
    several: bool  # more than one call


def call_format(request: PromptRequest, dialect: Dialect) -> CallFormat | None:
    """What a request demands of its answer; None where nothing is."""
    tools, choice = request.tools, request.tool_choice
    required = choice.kind in ("required", "function")
    if not tools or choice.kind == "none":
        return None
    if not required and request.parallel_tool_calls and not any(tool.strict for tool in tools):
        return None
    if choice.kind == "function":
        tools = tuple(tool for tool in tools if tool.name == choice.name)
    several = request.parallel_tool_calls and choice.kind != "function" and dialect != "llama"
    return CallFormat(dialect == "llama", tools, required, several)


def call_grammar(wanted: CallFormat, white_space: str) -> str:
    """In llguidance's Lark. Arguments are `%json` by themselves, so that references within a schema hold."""
    key = "parameters" if wanted.llama else "arguments"
    rules: list[str] = []
    for at, tool in enumerate(wanted.tools):
        head = json.dumps(f'{{"name": "{tool.name}", "{key}": ')
        rules.append(
            f'call_{at}: {head} arguments_{at} "}}"\narguments_{at}: %json {_schema(tool, wanted, white_space)}'
        )
    names = " | ".join(f"call_{at}" for at in range(len(wanted.tools)))
    return "\n".join([_START[wanted.llama, wanted.required, wanted.several], f"object: {names}", *rules])


def _schema(tool: Tool, wanted: CallFormat, white_space: str) -> str:
    """A schema for the arguments; that of a tool that is neither strict nor demanded only names its type."""
    schema = json.loads(tool.parameters) if tool.strict or wanted.required else {"type": "object"}
    options = {"whitespace_pattern": white_space, "lenient": not tool.strict}
    return json.dumps({"type": "object", **schema, "x-guidance": options})


_CALL: Final = 'call: "<tool_call>\\n" object "\\n</tool_call>"'
_AFTER_TEXT: Final = """call: before "\\n" object "\\n</tool_call>"
before[lazy]: /(?s:.*)<tool_call>/
TEXT: /(?s:.*)/ & ~/(?s:.*)<tool_call>(?s:.*)/"""
_START: Final[Mapping[tuple[bool, bool, bool], str]] = {  # llama, required, several
    (True, True, False): "start: object",
    (True, False, False): "start: (object | TEXT)?\nTEXT: /[^{ \\t\\r\\n](?s:.*)/",
    (False, True, False): f"start: call\n{_CALL}",
    (False, True, True): f'start: call ("\\n" call)*\n{_CALL}',
    (False, False, False): f"start: call? TEXT?\n{_AFTER_TEXT}",
    (False, False, True): f"start: call* TEXT?\n{_AFTER_TEXT}",
}
