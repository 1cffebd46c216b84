"""The messages of a chat as OpenAI spells them: a role and a text, whose parts may be listed, or calls of tools."""

from collections.abc import Mapping
from typing import Any, Final

from engine.contract.errors import ErrorCode, PromptError
from engine.contract.tools import read_calls

Messages = tuple[Mapping[str, Any], ...]
_FIELDS: Final = ("role", "content")
_EXTRA: Final = {"assistant": ("tool_calls",), "tool": ("tool_call_id", "name")}  # by role


def read_messages(name: str, value: Any) -> Messages:
    """The messages, each content one text: listed parts are joined as they are, null is "". Raises PromptError."""
    if not isinstance(value, list) or not value:
        raise _wrong(f"{name!r} must be a list of objects with 'role' and 'content'")
    messages: list[Any] = value  # type: ignore[reportUnknownVariableType]
    return tuple(_message(f"{name}[{at}]", message) for at, message in enumerate(messages))


def _message(name: str, message: Any) -> Mapping[str, Any]:
    if not isinstance(message, dict):
        raise _wrong(f"{name!r} must be an object with 'role' and 'content'")
    fields: dict[str, Any] = message  # type: ignore[reportUnknownVariableType]
    if fields.get("tool_calls"):
        fields = {"content": None, **fields}
    for field in _FIELDS:
        if field not in fields:
            raise _wrong(f"{name!r} has no {field!r}")
    role = _role(name, fields["role"])
    extra = _EXTRA.get(role, ())
    if unknown := sorted(set(fields) - {*_FIELDS, *extra}):
        raise _wrong(f"{name!r} has {unknown[0]!r}, which is not supported; known are {_listed(*_FIELDS, *extra)}")
    message = {"role": role, "content": _content(f"{name}.content", fields["content"])}
    return message | {
        field: _extra(f"{name}.{field}", fields[field]) for field in extra if fields.get(field) is not None
    }


def _role(name: str, role: Any) -> str:
    if not isinstance(role, str) or not role:
        raise _wrong(f"'{name}.role' must be a text that is not empty")
    return role


def _extra(name: str, value: Any) -> Any:
    if name.endswith(".tool_calls"):
        return read_calls(name, value)
    if not isinstance(value, str):
        raise _wrong(f"{name!r} must be a text")
    return value


def _listed(*names: str) -> str:
    return f"{', '.join(map(repr, names[:-1]))} and {names[-1]!r}"


def _content(name: str, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(f"{name!r} must be a text, null or a list of parts")
    parts: list[Any] = content  # type: ignore[reportUnknownVariableType]
    return "".join(_part(f"{name}[{at}]", part) for at, part in enumerate(parts))


def _part(name: str, part: Any) -> str:
    if not isinstance(part, dict):
        raise _wrong(f'{name!r} must be a part like {{"type": "text", "text": "…"}}')
    fields: dict[str, Any] = part  # type: ignore[reportUnknownVariableType]
    if fields.get("type") != "text":
        raise _wrong(f"{name!r} is of type {fields.get('type')!r}; only parts of type 'text' are supported")
    if not isinstance(fields.get("text"), str):
        raise _wrong(f"'{name}.text' must be a text")
    return fields["text"]


def _wrong(message: str) -> PromptError:
    return PromptError(ErrorCode.INVALID_PROMPT, message)
