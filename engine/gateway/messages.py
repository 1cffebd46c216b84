"""The messages of a chat as clients write them, in the one form that chat templates take. No I/O."""

from collections.abc import Mapping
from typing import Any, Final, cast

from engine.gateway.errors import invalid

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_KNOWN: Final = {"role", "content"}
_EXTRA: Final[dict[Any, set[str]]] = {"assistant": {"tool_calls"}, "tool": {"tool_call_id", "name"}}  # by role
UNKNOWN: Final = "unknown_parameter"
Fields = Mapping[str, Any]


def read_messages(value: object) -> list[dict[str, Any]]:
    """Messages with `content` as one text; "developer" is "system". Raises ApiError naming the place."""
    if not isinstance(value, list) or not value:
        raise invalid("messages", "'messages' must be a list of at least one message")
    return [_message(f"messages[{at}]", one) for at, one in enumerate(cast("list[object]", value))]


def _message(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(where, f"{where!r} must be an object")
    fields = {name: part for name, part in cast("Fields", value).items() if part is not None and part != []}
    role = fields.get("role")
    if role not in ROLES:
        raise invalid(f"{where}.role", f"'{where}.role' must be one of {', '.join(ROLES)}")
    known = _KNOWN | _EXTRA.get(role, set())
    if unknown := sorted(set(fields) - known):
        name = f"{where}.{unknown[0]}"
        raise invalid(name, f"{name!r} is not supported; this message has {', '.join(sorted(known))}", UNKNOWN)
    extra = {name: part for name, part in fields.items() if name not in _KNOWN}  # checked with the prompt
    content = "" if "tool_calls" in extra and "content" not in fields else fields.get("content")
    role = "system" if role == "developer" else role
    return {"role": role, "content": _content(f"{where}.content", content), **extra}


def _content(where: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise invalid(where, f"{where!r} must be a text, or a list of parts of the type text")
    return "".join(_part(f"{where}[{at}]", part) for at, part in enumerate(cast("list[object]", value)))


def _part(where: str, value: object) -> str:
    part: Fields = cast("Fields", value) if isinstance(value, dict) else {}
    text = part.get("text")
    if part.get("type") != "text" or not isinstance(text, str):
        raise invalid(where, f"{where!r} must be {{'type': 'text', 'text': …}}: this model reads only text")
    return text
