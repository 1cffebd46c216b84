"""Tools that an answer may call, and calls in the messages of a chat, as OpenAI spells them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import orjson

from engine.contract.errors import ErrorCode, PromptError

MAX_TOOLS: Final = 128
MAX_TOOLS_BYTES: Final = 256 << 10  # of JSON: all of them together
MAX_CALLS: Final = 64  # in one message
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FUNCTION: Final = frozenset(("name", "description", "parameters", "strict"))
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client runs."""

    name: str
    description: str
    parameters: str  # JSON text of a schema
    strict: bool = False  # its arguments must keep to the schema, called for or not

    def as_fields(self) -> dict[str, Any]:
        """As chat templates want it."""
        described = {"description": self.description} if self.description else {}
        return {
            "type": "function",
            "function": {"name": self.name, **described, "parameters": orjson.loads(self.parameters)},
        }


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether an answer may (auto), must (required) or must not (none) call; `function`: must call `name`."""

    kind: Literal["none", "auto", "required", "function"] = "auto"
    name: str = ""


AUTO: Final = ToolChoice()


def read_tools(name: str, value: Any) -> tuple[Tool, ...]:
    """The tools; none for an empty list. Raises PromptError naming what is wrong."""
    if not isinstance(value, list):
        raise _wrong(name, name, "a list of functions")
    found = cast("list[Any]", value)
    if len(found) > MAX_TOOLS:
        raise _wrong(name, name, f"at most {MAX_TOOLS} functions")
    tools = tuple(_tool(f"{name}[{at}]", one) for at, one in enumerate(found))
    if len({tool.name for tool in tools}) < len(tools):
        raise _wrong(name, name, "functions of different names")
    if sum(len(tool.parameters) + len(tool.description) for tool in tools) > MAX_TOOLS_BYTES:
        raise _wrong(name, name, f"at most {MAX_TOOLS_BYTES >> 10} KiB of JSON")
    return tools


def _tool(where: str, value: Any) -> Tool:
    function = _function(where, where, value)
    if unknown := sorted(set(function) - _FUNCTION):
        raise _wrong(where, f"{where}.function", f"without {unknown[0]!r}; known are {', '.join(sorted(_FUNCTION))}")
    description, parameters = function.get("description"), function.get("parameters")
    strict = function.get("strict")
    if description is not None and not isinstance(description, str):
        raise _wrong(where, f"{where}.function.description", "a text")
    if parameters is not None and not isinstance(parameters, dict):
        raise _wrong(where, f"{where}.function.parameters", "a JSON schema")
    if strict is not None and not isinstance(strict, bool):
        raise _wrong(where, f"{where}.function.strict", "true or false")
    schema: Fields = cast("Fields", parameters) if parameters else {"type": "object", "properties": {}}
    return Tool(function["name"], description or "", orjson.dumps(schema).decode(), bool(strict))


def _function(field: str, where: str, value: Any) -> Fields:
    """The `function` of {"type": "function", "function": {"name": …}}."""
    fields: Fields = cast("Fields", value) if isinstance(value, dict) else {}
    function: Any = fields.get("function")
    if fields.get("type", "function") != "function" or not isinstance(function, dict):
        raise _wrong(field, where, "{'type': 'function', 'function': …}")
    found = cast("Fields", function)
    if not isinstance(found.get("name"), str) or not _NAME.fullmatch(found["name"]):
        raise _wrong(field, f"{where}.function.name", "1 to 64 of A-Z a-z 0-9 _ -")
    return found


def read_tool_choice(name: str, value: Any) -> ToolChoice:
    """Raises PromptError."""
    if value in ("none", "auto", "required"):
        return ToolChoice(value)
    if not isinstance(value, dict):
        raise _wrong(name, name, "none, auto, required or {'type': 'function', 'function': {'name': …}}")
    return ToolChoice("function", _function(name, name, value)["name"])


def check_use(tools: tuple[Tool, ...], choice: ToolChoice, *, beside: Mapping[str, bool]) -> None:
    """Raise PromptError for a choice without its tool, and for a field `beside` them that cannot go with tools."""
    check_choice(tools, choice)
    if not tools or choice.kind == "none":
        return
    for name, there in beside.items():
        if there:
            raise PromptError(ErrorCode.INVALID_PROMPT, f"{name!r} cannot go with 'tools'", field=name)


def check_choice(tools: tuple[Tool, ...], choice: ToolChoice) -> None:
    """Whether there is what the choice demands. Raises PromptError."""
    if choice.kind == "required" and not tools:
        raise PromptError(ErrorCode.INVALID_PROMPT, "'tool_choice' needs 'tools'", field="tool_choice")
    if choice.kind == "function" and choice.name not in {tool.name for tool in tools}:
        raise PromptError(
            ErrorCode.INVALID_PROMPT,
            f"'tool_choice' names {choice.name!r}, which is not among the tools",
            field="tool_choice",
        )


def read_calls(where: str, value: Any) -> list[dict[str, Any]]:
    """The `tool_calls` of a message: arguments become objects, as chat templates want them. Raises PromptError."""
    if not isinstance(value, list) or not 1 <= len(cast("list[Any]", value)) <= MAX_CALLS:
        raise _wrong("messages", where, f"a list of 1 to {MAX_CALLS} calls")
    return [_call(f"{where}[{at}]", one) for at, one in enumerate(cast("list[Any]", value))]


def _call(where: str, value: Any) -> dict[str, Any]:
    function = _function("messages", where, value)
    arguments: Any = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments or "{}")
        except orjson.JSONDecodeError:
            arguments = None
    if not isinstance(arguments, dict):
        raise _wrong("messages", f"{where}.function.arguments", "a JSON object, as text")
    named = {"id": value["id"]} if isinstance(value.get("id"), str) else {}
    return {**named, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _wrong(field: str, where: str, expected: str) -> PromptError:
    return PromptError(ErrorCode.INVALID_PROMPT, f"{where!r} must be {expected}", field=field)
