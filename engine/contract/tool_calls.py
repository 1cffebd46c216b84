"""Calls of tools in the text of an answer: what is text, what is a call. No I/O.

Read are `<tool_call>{"name": …, "arguments": {…}}</tool_call>` anywhere (Hermes, Qwen and others), a list of calls in
one such pair, and answers that begin with a bare call, `{"name": …, "parameters": {…}}` (Llama). What only looks like
a call is text.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, cast

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_BLANK: Final = " \t\r\n"
_BARE: Final = re.compile(r'\{\s*"(name|type|function)"')  # how a bare call begins
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call."""

    name: str
    arguments: str  # JSON text of an object


Part = str | ToolCall


class CallReader:
    """Text in, piece by piece; out what is certain: text, and whole calls.

    White space before a call is dropped, between text it stays: whole and in pieces, an answer reads the same.
    """

    def __init__(self, names: Collection[str]) -> None:
        """`names` of the tools: a bare call must name one of them."""
        self._names = frozenset(names)
        self._held = ""
        self._fresh = ""  # what came last
        self._begun = False  # text was emitted: no bare call may follow
        self._after_call = False
        self._ended = False

    def feed(self, text: str) -> list[Part]:
        """Take some more of the answer."""
        self._held += text
        self._fresh = text
        parts: list[Part] = []
        while (found := self._next()) is not None:
            parts += found
        return parts

    def close(self) -> list[Part]:
        """The rest, at the end of the answer."""
        self._ended = True
        return self.feed("")

    def _next(self) -> list[Part] | None:
        """Parts of the beginning of what is held, which is shorter then; None: nothing more is certain."""
        if not self._held:
            return None
        if not self._begun:
            begin = self._held.lstrip(_BLANK + ";" * self._after_call)
            if not begin and not self._ended:
                return None
            if begin.startswith("{"):
                found = self._bare(begin)
                if found is not None or not self._begun:
                    return found
        if self._held.lstrip(_BLANK).startswith(OPEN):
            return self._tagged()
        return self._text()

    def _bare(self, begin: str) -> list[Part] | None:
        """A bare call at the beginning; None while it is not whole, and when it is none: then text has begun."""
        if not _BARE.match(begin) and (self._ended or not _may_begin_bare(begin)):
            self._begun = True
            return None
        if "}" not in self._fresh and not self._ended:  # not whole: no need to look
            return None
        try:
            value, end = _DECODER.raw_decode(begin)
        except json.JSONDecodeError:
            self._begun = self._ended
            return None
        if (call := _call(value)) is None or call.name not in self._names:
            self._begun = True
            return None
        self._held, self._after_call = begin[end:], True
        return [call]

    def _tagged(self) -> list[Part] | None:
        """The call between a pair of tags; None while it is not whole."""
        start = self._held.index(OPEN) + len(OPEN)
        end = self._held.find(CLOSE, start)
        while end >= 0:
            calls, torn = _calls(self._held[start:end])
            if not torn or (self._ended and self._held.find(CLOSE, end + 1) < 0):
                return self._take(end + len(CLOSE), calls)
            end = self._held.find(CLOSE, end + 1)  # this one is in a text of its arguments
        if not self._ended:
            return None
        return self._take(len(self._held), _calls(self._held[start:])[0])

    def _take(self, end: int, calls: list[ToolCall]) -> list[Part]:
        shown, self._held = self._held[:end], self._held[end:]
        self._begun, self._after_call = self._begun or not calls, bool(calls)
        return [*calls] if calls else [shown]

    def _text(self) -> list[Part] | None:
        """Text up to the next call, or to what may become one; None when that is all."""
        at = self._held.find(OPEN)
        if at < 0:
            at = len(self._held) if self._ended else len(self._held) - _beginning_of(OPEN, self._held)
        if at < len(self._held) or not self._ended:
            at = len(self._held[:at].rstrip(_BLANK))
        if not at or (self._after_call and self._ended and not self._held.strip(_BLANK)):
            return None
        text, self._held = self._held[:at], self._held[at:]
        self._begun, self._after_call = True, False
        return [text]


def read_all(text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    """A whole answer: its text and its calls."""
    reader = CallReader(names)
    parts = [*reader.feed(text), *reader.close()]
    return "".join(part for part in parts if isinstance(part, str)), [p for p in parts if isinstance(p, ToolCall)]


def _may_begin_bare(text: str) -> bool:
    """Whether a text too short to tell may become a bare call."""
    squeezed = re.sub(r"\s+", "", text)
    return any(f'{{"{key}"'.startswith(squeezed) for key in ("name", "type", "function"))


def _beginning_of(tag: str, text: str) -> int:
    """How many characters at the end of the text may be the beginning of the tag."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-n:])), 0)


def _calls(body: str) -> tuple[list[ToolCall], bool]:
    """The calls that a body spells, none if it is anything else; and whether it ends within a text."""
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        return [], error.msg.startswith("Unterminated string")
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    calls = [call for one in values if (call := _call(one)) is not None]
    return (calls if len(calls) == len(values) else []), False


def _call(value: Any) -> ToolCall | None:
    """{"name": …, "arguments" or "parameters": {…}}, also within "function"."""
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    if isinstance(fields.get("function"), dict):
        fields = cast("dict[str, Any]", fields["function"])
    name = fields.get("name", fields.get("function"))
    arguments = fields.get("arguments", fields.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except json.JSONDecodeError:
            return None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))
