"""The visible side of one answer: ids in, text and the reason to end out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.contract.logprobs import TokenLogprob, TopLogprob
from engine.contract.prompt import FinishReason
from engine.contract.side import Logprobs
from engine.decoder.stopping import StopStrings
from engine.decoder.tokenizer import TextStream


@dataclass(frozen=True, slots=True)
class EndRules:
    """What ends an answer."""

    eos_ids: frozenset[int]
    max_tokens: int
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What one acceptance adds; text waits for whole characters, so either may be empty."""

    text: str
    ids: tuple[int, ...]
    finish: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()  # of each id, or none at all


@dataclass(slots=True)
class Answer:
    """Accepts the tokens of one request in order until a rule ends it.

    An end-of-sequence token and the token that completes a stop string belong to the ids, not to the text.
    """

    rules: EndRules
    stream: TextStream
    pieces: Sequence[bytes] | None = None  # bytes of every token, for the readers of logprobs
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    text: str = ""
    finish: FinishReason | None = None
    _stops: StopStrings = field(init=False)

    def __post_init__(self) -> None:
        self._stops = StopStrings(self.rules.stop)

    def accept(self, tokens: Sequence[int], known: Sequence[Logprobs | None] = ()) -> Delta:
        """Take tokens until one ends the answer; the rest is dropped. `known` of them: what the last stage said."""
        before, text = len(self.ids), ""
        for token in tokens:
            if self.finish:
                break
            self.ids.append(token)
            text += self._shown_by(token)
        self.text += text
        ids = tuple(self.ids[before:])
        logprobs = tuple(
            token_logprob(token, one, self.pieces) for token, one in zip(ids, known, strict=False) if one is not None
        )
        self.logprobs += logprobs
        return Delta(text, ids, self.finish, logprobs)

    def _shown_by(self, token: int) -> str:
        if token in self.rules.eos_ids:
            self.finish = "stop"
            return self._rest()
        shown, stopped = self._stops.feed(self.stream.feed([token]))
        if stopped:
            self.finish = "stop"
        elif len(self.ids) >= self.rules.max_tokens:
            self.finish = "length"
            return shown + self._rest()
        return shown

    def _rest(self) -> str:
        shown, stopped = self._stops.feed(self.stream.flush())
        return shown if stopped else shown + self._stops.flush()

    def end(self, reason: FinishReason) -> Delta:
        """End from outside (cancelled, error): what was held back becomes visible."""
        text = self._rest()
        self.text += text
        self.finish = reason
        return Delta(text, (), reason)


def token_logprob(token: int, known: Logprobs, pieces: Sequence[bytes] | None) -> TokenLogprob:
    """As clients see it."""

    def spelled(one: int) -> tuple[int, ...]:
        return tuple(pieces[one]) if pieces is not None and one < len(pieces) else ()

    top = (TopLogprob(one, logprob, spelled(one)) for one, logprob in zip(known.top_ids, known.top, strict=True))
    return TokenLogprob(id=token, logprob=known.token, bytes=spelled(token), top=tuple(top))
