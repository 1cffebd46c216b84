"""What an answer must look like: `response_format` as OpenAI spells it, and two forms of ours."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from engine.contract.errors import ErrorCode, PromptError

MAX_SCHEMA_BYTES: Final = 128 << 10
MAX_REGEX_LENGTH: Final = 4096  # characters
MAX_OPTIONS: Final = 1000
MAX_OPTION_LENGTH: Final = 1024  # characters
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Any JSON object."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON document that the schema accepts."""

    schema: str  # JSON text of an object; the order of its properties counts


@dataclass(frozen=True, slots=True)
class Regex:
    """A text that the expression matches from its first to its last character."""

    regex: str  # syntax of Rust's regex crate: no look-around, no back-references


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these texts."""

    choices: tuple[str, ...]


ResponseFormat = JsonObject | JsonSchema | Regex | Choice


def read_response_format(name: str, value: object) -> ResponseFormat | None:
    """The format that a field's value spells; None for plain text. Raises PromptError naming what is wrong.

    Whether a schema or an expression can be used is only known once it is compiled.
    """
    fields = _object(name, value)
    kind = fields.get("type")
    if not isinstance(kind, str) or kind not in _READERS:
        raise _wrong(f"{name}.type", f"one of {', '.join(_READERS)}")
    known, read = _READERS[kind]
    _only(name, fields, {"type", *known})
    return read(name, fields)


def _json_schema(name: str, fields: Fields) -> JsonSchema:
    name = f"{name}.json_schema"
    inner = _object(name, fields.get("json_schema"))
    _only(name, inner, {"name", "description", "schema", "strict"})
    title, description, strict = inner.get("name"), inner.get("description"), inner.get("strict")
    if not isinstance(title, str) or not _NAME.fullmatch(title):
        raise _wrong(f"{name}.name", "1 to 64 of A-Z a-z 0-9 _ -")
    if description is not None and not isinstance(description, str):
        raise _wrong(f"{name}.description", "a text")
    if strict is not None and not isinstance(strict, bool):  # a schema is always kept to; this changes nothing
        raise _wrong(f"{name}.strict", "true or false")
    schema = orjson.dumps(_object(f"{name}.schema", inner.get("schema")))
    if len(schema) > MAX_SCHEMA_BYTES:
        raise _wrong(f"{name}.schema", f"at most {MAX_SCHEMA_BYTES >> 10} KiB of JSON")
    return JsonSchema(schema.decode())


def _regex(name: str, fields: Fields) -> Regex:
    regex = fields.get("regex")
    if not isinstance(regex, str) or not 1 <= len(regex) <= MAX_REGEX_LENGTH:
        raise _wrong(f"{name}.regex", f"a text of 1 to {MAX_REGEX_LENGTH} characters")
    return Regex(regex)


def _choice(name: str, fields: Fields) -> Choice:
    found: Any = fields.get("choices")
    if (
        not isinstance(found, list)
        or not 1 <= len(found) <= MAX_OPTIONS  # type: ignore[reportUnknownArgumentType]
        or not all(isinstance(text, str) and 1 <= len(text) <= MAX_OPTION_LENGTH for text in found)  # type: ignore[reportUnknownVariableType]
    ):
        raise _wrong(f"{name}.choices", f"a list of 1 to {MAX_OPTIONS} texts of 1 to {MAX_OPTION_LENGTH} characters")
    return Choice(tuple(dict.fromkeys(found)))  # type: ignore[reportUnknownArgumentType]


def _object(name: str, value: object) -> Fields:
    if not isinstance(value, dict):
        raise _wrong(name, "an object")
    return value  # type: ignore[reportUnknownVariableType]


def _only(name: str, fields: Fields, known: set[str]) -> None:
    if unknown := sorted(set(fields) - known):
        raise PromptError(
            ErrorCode.INVALID_PROMPT,
            f"unknown field {unknown[0]!r} in {name!r}; known are {', '.join(sorted(known))}",
            field=name,
        )


def _wrong(name: str, expected: str) -> PromptError:
    return PromptError(ErrorCode.INVALID_PROMPT, f"{name!r} must be {expected}", field=name)


_READERS: Final[Mapping[str, tuple[set[str], Callable[[str, Fields], ResponseFormat | None]]]] = {
    "text": (set(), lambda name, fields: None),
    "json_object": (set(), lambda name, fields: JsonObject()),
    "json_schema": ({"json_schema"}, _json_schema),
    "regex": ({"regex"}, _regex),
    "choice": ({"choices"}, _choice),
}
