"""What a client may ask, and what it gets back. Field names are OpenAI's."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import orjson

from engine.contract.chat import Messages, read_messages
from engine.contract.drafts import MAX_DRAFT_TOKENS
from engine.contract.errors import ErrorCode, FrameError, PromptError
from engine.contract.ids import RequestId
from engine.contract.logprobs import TokenLogprob
from engine.contract.reading import read
from engine.contract.response_format import ResponseFormat, read_response_format
from engine.contract.sampling import SAMPLING_READERS, sampling_from
from engine.contract.told import Told, read_told
from engine.contract.tools import AUTO, Tool, ToolChoice, check_use, read_tool_choice, read_tools
from engine.contract.traces import read_traceparent

FinishReason = Literal["stop", "length", "cancelled", "error"]
DraftSource = Literal["auto", "model", "lookup", "none"]
DRAFT_SOURCES: Final[tuple[DraftSource, ...]] = ("auto", "model", "lookup", "none")
MAX_ID_LENGTH: Final = 64
MAX_CHOICES: Final = 16
MAX_PRIORITY: Final = 9  # and as far below 0
MAX_STOP_STRINGS: Final = 16
MAX_STOP_LENGTH: Final = 256  # characters: text is held back for as long as a stop string could still begin
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest:
    """One question. Exactly one of `prompt` (raw text) and `messages` (through the chat template) is set."""

    id: RequestId | None = None
    prompt: str | None = None
    messages: Messages | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    draft: DraftSource = "auto"  # where drafts come from; what is not there is passed over
    draft_tokens: int | None = None  # per window; None: as many as pay
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])  # fields of engine.contract.sampling, checked
    n: int = 1  # answers
    response_format: ResponseFormat | None = None  # None: any text
    tools: tuple[Tool, ...] = ()  # that the answer may call; only with messages
    tool_choice: ToolChoice = AUTO
    parallel_tool_calls: bool = True  # more than one call in an answer
    told: tuple[Told, ...] = ()  # of the answer before, by a decoder that was lost: what comes goes on behind it
    traceparent: str = ""  # the trace that it is part of
    priority: int = 0  # higher first
    deadline_ms: int | None = None  # from arrival: by then the answer must have begun


def parse_prompt(data: bytes) -> PromptRequest:
    """Read a prompt message: a JSON object, or plain text taken as one user message.

    Raises PromptError: not UTF-8, empty, broken JSON, unknown or impossible fields.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PromptError(ErrorCode.INVALID_PROMPT, f"the prompt is not UTF-8: {error.reason}") from error
    if not text.strip():
        raise PromptError(ErrorCode.INVALID_PROMPT, "the prompt is empty")
    if not text.lstrip().startswith("{"):
        return PromptRequest(messages=({"role": "user", "content": text},))
    try:
        fields: dict[str, Any] = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise PromptError(ErrorCode.INVALID_PROMPT, f"the prompt starts with '{{' but is not JSON: {error}") from error
    return prompt_from_fields(fields)


def peek_id(data: bytes) -> RequestId | None:
    """The id of a prompt that may otherwise be wrong: its refusal must reach the one who asked."""
    try:
        fields = orjson.loads(data)
        return _id("id", fields["id"])
    except (orjson.JSONDecodeError, PromptError, KeyError, TypeError):
        return None


def prompt_from_fields(fields: Mapping[str, Any]) -> PromptRequest:
    """Validate the fields of a prompt. Raises PromptError naming the field."""
    readers: dict[str, Any] = {**_READERS, **SAMPLING_READERS}
    unknown = sorted(set(fields) - set(readers))
    if unknown:
        raise PromptError(
            ErrorCode.UNKNOWN_FIELD,
            f"unknown field {unknown[0]!r}; known are {', '.join(sorted(readers))}",
            field=unknown[0],
        )
    values: dict[str, Any] = {name: readers[name](name, value) for name, value in fields.items() if value is not None}
    values["sampling"] = {name: values.pop(name) for name in SAMPLING_READERS if name in values}
    sampling_from(values["sampling"], 0)
    if ("prompt" in values) == ("messages" in values):
        raise PromptError(ErrorCode.INVALID_PROMPT, "exactly one of 'prompt' and 'messages' is needed")
    if values.get("response_format") is not None and values.get("ignore_eos"):
        raise PromptError(ErrorCode.INVALID_PROMPT, "'ignore_eos' cannot go with 'response_format'")
    request = PromptRequest(**values)
    never = {name: values.get(name) not in (None, False) for name in ("prompt", "response_format", "ignore_eos")}
    check_use(request.tools, request.tool_choice, beside=never)
    return request


def _wrong(name: str, expected: str) -> PromptError:
    return PromptError(ErrorCode.INVALID_PROMPT, f"{name!r} must be {expected}", field=name)


def _id(name: str, value: object) -> RequestId:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise _wrong(name, f"1 to {MAX_ID_LENGTH} of A-Z a-z 0-9 _ -")
    return RequestId(value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(name, "a text that is not empty")
    return value


def _positive(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _wrong(name, "a whole number of at least 1")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "true or false")
    return value


def _draft(name: str, value: Any) -> DraftSource:
    if value not in DRAFT_SOURCES:
        raise _wrong(name, f"one of {', '.join(DRAFT_SOURCES)}")
    return value


def _draft_tokens(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_DRAFT_TOKENS:
        raise _wrong(name, f"a whole number from 0 to {MAX_DRAFT_TOKENS}")
    return value


def _choices(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_CHOICES:
        raise _wrong(name, f"a whole number from 1 to {MAX_CHOICES}")
    return value


def _priority(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_PRIORITY:
        raise _wrong(name, f"a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    return value


def _stop(name: str, value: Any) -> tuple[str, ...]:
    texts: list[Any] = [value] if isinstance(value, str) else value
    if (
        not isinstance(texts, list)  # type: ignore[reportUnnecessaryIsInstance]
        or not 1 <= len(texts) <= MAX_STOP_STRINGS
        or not all(isinstance(text, str) and 1 <= len(text) <= MAX_STOP_LENGTH for text in texts)
    ):
        raise _wrong(name, f"a text or up to {MAX_STOP_STRINGS} texts of 1 to {MAX_STOP_LENGTH} characters")
    return tuple(texts)


_READERS: Final[dict[str, Any]] = {
    "id": _id,
    "prompt": _text,
    "messages": read_messages,
    "max_tokens": _positive,
    "stop": _stop,
    "ignore_eos": _flag,
    "draft": _draft,
    "draft_tokens": _draft_tokens,
    "n": _choices,
    "response_format": read_response_format,
    "tools": read_tools,
    "tool_choice": read_tool_choice,
    "parallel_tool_calls": _flag,
    "told": read_told,
    "traceparent": read_traceparent,
    "priority": _priority,
    "deadline_ms": _positive,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    drafted_tokens: int = 0  # that were sent and compared with the model's own
    accepted_tokens: int = 0  # of those; they are part of the completion

    @property
    def total_tokens(self) -> int:
        """Prompt and answer together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Milliseconds of one request, from its arrival at the decoder."""

    queued: float  # until admitted to the pipeline
    first_token: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of several answers to a prompt."""

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """Some more of an answer. `seq` counts from 0 without gaps, the final event included.

    `numerics`: only where they differ from the event before, see `FinalEvent`.
    """

    request: RequestId
    seq: int
    text: str
    ids: tuple[int, ...]
    index: int = 0  # of the choice, when several were asked for
    logprobs: tuple[TokenLogprob, ...] = ()  # of each id, when asked for
    numerics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalEvent:
    """The end of an answer: the whole text and all ids, or an error. With `n` > 1 those of the first choice.

    `numerics`: fingerprints of the chains that computed it, in order. Several mark an answer that went on after a loss
    where arithmetic differs, or a replay does not give the same bits: all that was told stays, but an undisturbed run
    might have said something else from there on.
    """

    request: RequestId
    seq: int
    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    error: Mapping[str, str] | None = None  # code, message, and the field of the prompt that is wrong, if it is one
    logprobs: tuple[TokenLogprob, ...] = ()
    choices: tuple[Choice, ...] = ()  # all of them, when several were asked for
    numerics: tuple[str, ...] = ()

    @property
    def mixed(self) -> bool:
        """Whether it is marked: not all of it was computed alike."""
        return len(self.numerics) > 1


Event = TokenEvent | FinalEvent


def encode_event(event: Event) -> bytes:
    """An event as one JSON object."""
    fields = asdict(event)
    if isinstance(event, FinalEvent):
        fields["final"] = True
    for name in ("error", "logprobs", "choices", "index", "numerics"):
        if not fields.get(name, True):
            del fields[name]
    return orjson.dumps(fields)


def decode_event(data: bytes) -> Event:
    """Read an event; unknown fields are passed over. Raises FrameError naming what is wrong."""
    try:
        fields: Any = orjson.loads(data)
        final = isinstance(fields, dict) and fields.get("final") is True  # type: ignore[reportUnknownMemberType]
        return read(FinalEvent if final else TokenEvent, fields)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise FrameError(f"not an event: {error}") from error
