"""Answers in OpenAI's shapes: whole, and as the chunks of a stream. No I/O."""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from engine.contract.logprobs import TokenLogprob, TopLogprob
from engine.contract.prompt import Choice, FinalEvent, TokenEvent, Usage
from engine.contract.tool_calls import CallReader, Part, ToolCall, read_all
from engine.gateway.request import Asked

Json = dict[str, Any]


class Reply(Protocol):
    """One answer in the shape of one endpoint."""

    def opening(self, choices: int) -> list[Json]:
        """Chunks before the first text."""
        ...

    def delta(self, event: TokenEvent) -> list[Json]:
        """The chunks of a token event: often one."""
        ...

    def closing(self, final: FinalEvent) -> list[Json]:
        """Chunks after the last text: every choice's reason to end, once."""
        ...

    def usage(self, final: FinalEvent) -> Json:
        """The chunk with the sums, the last one."""
        ...

    def whole(self, final: FinalEvent) -> Json:
        """The answer in one piece."""
        ...


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of one answer have in common."""

    id: str
    model: str
    include_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def chunk(self, kind: str, choices: list[Json]) -> Json:
        """A chunk; with `include_usage` all but the last say that they have none."""
        nothing: Json = {"usage": None} if self.include_usage else {}
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **nothing,
        }


@dataclass(frozen=True, slots=True)
class ChatReply:
    """Of /v1/chat/completions."""

    head: Head
    logprobs: bool
    tools: frozenset[str] = frozenset()  # names of those that may be called
    _readers: dict[int, CallReader] = field(default_factory=dict[int, CallReader])  # by choice, while streaming
    _calls: Counter[int] = field(default_factory=Counter[int])  # streamed so far, by choice

    @classmethod
    def to(cls, head: Head, asked: Asked) -> Self:
        """The one to what was asked."""
        return cls(head, asked.logprobs, asked.tools)

    def opening(self, choices: int) -> list[Json]:
        """See Reply."""
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(choices)]

    def delta(self, event: TokenEvent) -> list[Json]:
        """See Reply."""
        logprobs = self._logprobs(event.logprobs)
        if not self.tools:
            return [self._chunk(event.index, {"content": event.text}, logprobs)]
        parts = self._reader(event.index).feed(event.text)
        chunks = [self._part(event.index, part) for part in parts]
        return chunks if logprobs is None else [self._chunk(event.index, {"content": ""}, logprobs), *chunks]

    def closing(self, final: FinalEvent) -> list[Json]:
        """See Reply."""
        chunks: list[Json] = []
        for index, choice in enumerate(choices_of(final)):
            rest = self._reader(index).close() if self.tools else []
            chunks += [self._part(index, part) for part in rest]
            end = self._chunk(index, {}, finish=_reason(choice.finish_reason, calls=self._calls[index]))
            chunks.append({**end, **computed_by(final)})
        return chunks

    def usage(self, final: FinalEvent) -> Json:
        """See Reply."""
        sums = self.head.chunk("chat.completion.chunk", [])
        return {**sums, **computed_by(final), "usage": usage_of(final.usage)}

    def whole(self, final: FinalEvent) -> Json:
        """See Reply."""
        choices = [self._whole(index, choice) for index, choice in enumerate(choices_of(final))]
        return {**self.head.chunk("chat.completion", choices), **computed_by(final), "usage": usage_of(final.usage)}

    def _whole(self, index: int, choice: Choice) -> Json:
        text, calls = read_all(choice.text, self.tools) if self.tools else (choice.text, [])
        message: Json = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if calls:
            message["tool_calls"] = [self._call(index, at, call) for at, call in enumerate(calls)]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": _reason(choice.finish_reason, calls=len(calls)),
        }

    def _reader(self, index: int) -> CallReader:
        return self._readers.setdefault(index, CallReader(self.tools))

    def _part(self, index: int, part: Part) -> Json:
        if isinstance(part, str):
            return self._chunk(index, {"content": part})
        at = self._calls[index]
        self._calls[index] += 1
        return self._chunk(index, {"tool_calls": [{"index": at, **self._call(index, at, part)}]})

    def _call(self, index: int, at: int, call: ToolCall) -> Json:
        """The id is the same streamed and whole, and no other call's."""
        function = {"name": call.name, "arguments": call.arguments}
        request = self.head.id.rpartition("-")[2]
        return {"id": f"call_{request}_{index}_{at}", "type": "function", "function": function}

    def _chunk(self, index: int, delta: Json, logprobs: Json | None = None, finish: str | None = None) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self.head.chunk("chat.completion.chunk", [choice])

    def _logprobs(self, found: tuple[TokenLogprob, ...]) -> Json | None:
        if not self.logprobs:
            return None
        content = [{**_shown(one), "top_logprobs": [_shown(top) for top in one.top]} for one in found]
        return {"content": content, "refusal": None}


@dataclass(frozen=True, slots=True)
class CompletionReply:
    """Of /v1/completions."""

    head: Head
    logprobs: bool
    _offsets: Counter[int] = field(default_factory=Counter[int])  # characters, by choice

    @classmethod
    def to(cls, head: Head, asked: Asked) -> Self:
        """The one to what was asked."""
        return cls(head, asked.logprobs)

    def opening(self, choices: int) -> list[Json]:
        """See Reply."""
        return []

    def delta(self, event: TokenEvent) -> list[Json]:
        """See Reply."""
        logprobs = self._logprobs(event.logprobs, self._offsets[event.index])
        self._offsets[event.index] += sum(len(_text(one)) for one in event.logprobs)
        return [self._object([self._choice(event.index, event.text, logprobs)])]

    def closing(self, final: FinalEvent) -> list[Json]:
        """See Reply."""
        ended = enumerate(choices_of(final))
        return [
            {**self._object([self._choice(index, "", None, choice.finish_reason)]), **computed_by(final)}
            for index, choice in ended
        ]

    def usage(self, final: FinalEvent) -> Json:
        """See Reply."""
        return {**self._object([]), **computed_by(final), "usage": usage_of(final.usage)}

    def whole(self, final: FinalEvent) -> Json:
        """See Reply."""
        choices = [
            self._choice(index, choice.text, self._logprobs(choice.logprobs, 0), choice.finish_reason)
            for index, choice in enumerate(choices_of(final))
        ]
        return {**self._object(choices), **computed_by(final), "usage": usage_of(final.usage)}

    def _object(self, choices: list[Json]) -> Json:
        return self.head.chunk("text_completion", choices)

    @staticmethod
    def _choice(index: int, text: str, logprobs: Json | None, finish: str | None = None) -> Json:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, found: tuple[TokenLogprob, ...], offset: int) -> Json | None:
        if not self.logprobs:
            return None
        offsets: list[int] = []
        for one in found:
            offsets.append(offset)
            offset += len(_text(one))
        return {
            "tokens": [_text(one) for one in found],
            "token_logprobs": [one.logprob for one in found],
            "top_logprobs": [{_key(top): top.logprob for top in one.top} for one in found],
            "text_offset": offsets,
        }


def _reason(reason: str, *, calls: int) -> str:
    return "tool_calls" if calls and reason == "stop" else reason


def choices_of(final: FinalEvent) -> tuple[Choice, ...]:
    """All answers, the only one too."""
    if final.choices:
        return final.choices
    return (Choice(text=final.text, ids=final.ids, finish_reason=final.finish_reason, logprobs=final.logprobs),)


def computed_by(final: FinalEvent) -> Json:
    """Equal fingerprints, equal answers to equal questions; one with a "+" marks an answer not all computed alike."""
    return {"system_fingerprint": "+".join(final.numerics) or None}


def usage_of(usage: Usage) -> Json:
    """Tokens in OpenAI's words."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _shown(one: TokenLogprob | TopLogprob) -> Json:
    return {"token": _text(one), "logprob": one.logprob, "bytes": list(one.bytes)}


def _text(one: TokenLogprob | TopLogprob) -> str:
    return bytes(one.bytes).decode(errors="replace")


def _key(one: TopLogprob) -> str:
    """A text that no other token has: parts of characters are written as their bytes."""
    text = _text(one)
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in one.bytes) if "\ufffd" in text else text
