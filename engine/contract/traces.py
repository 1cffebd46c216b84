"""Trace contexts as W3C writes them: in a prompt's `traceparent`, and in `Step.extra`, forwarded by every stage."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

from engine.contract.errors import ErrorCode, PromptError

MAX_TRACED: Final = 16  # rows of a step that are traced
_FIELD: Final = "traces"
_CONTEXT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Span(Protocol):
    """Something that began and has not ended yet."""

    @property
    def context(self) -> str:
        """What its parts name as their parent."""
        ...

    @property
    def recording(self) -> bool:
        """Whether anybody will look at it: if not, its parts need not be made."""
        ...

    def end(self, at: float | None = None, **attributes: str | float) -> None:
        """`at`: time.monotonic(), now without."""
        ...


class Tracer(Protocol):
    """Where spans go (engine.monitoring.tracing)."""

    def start(self, name: str, parent: str = "", at: float | None = None, **attributes: str | float) -> Span:
        """Begin a span within `parent`, or a trace of its own. `at` as in `Span.end`. Callable from any thread."""
        ...


def read_traceparent(name: str, value: Any) -> str:
    """Raises PromptError for what is no context."""
    if not isinstance(value, str) or not _CONTEXT.fullmatch(value):
        raise PromptError(ErrorCode.INVALID_PROMPT, f"{name!r} must be a W3C trace context", field=name)
    return value


def context_or_none(value: str) -> str:
    """A header's value if it is a context, else ""."""
    return value if _CONTEXT.fullmatch(value) else ""


def with_traces(contexts: Sequence[str]) -> dict[str, Any]:
    """What goes into `Step.extra`; nothing when there are none."""
    return {_FIELD: list(contexts)} if contexts else {}


def traces_of(extra: Mapping[str, Any]) -> list[str]:
    """The contexts of a step; what is none is passed over."""
    found: Any = extra.get(_FIELD, ())
    if not isinstance(found, list):
        return []
    return [one for one in cast("list[Any]", found)[:MAX_TRACED] if isinstance(one, str) and _CONTEXT.fullmatch(one)]
