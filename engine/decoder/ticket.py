"""The client's side of one request: numbered events, and where its prompt came from."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from engine.contract.errors import PromptError
from engine.contract.history import History
from engine.contract.ids import RequestId
from engine.contract.logprobs import TokenLogprob
from engine.contract.prompt import Choice, Event, FinalEvent, Timings, TokenEvent, Usage
from engine.decoder.answer import Delta
from engine.decoder.numerics import Numerics, Stretches
from engine.decoder.outbox import Lane
from engine.decoder.sequence import Sequence
from engine.decoder.traced import RequestTrace
from engine.transport.base import Job


@dataclass(slots=True)
class _Held:
    """Tokens of one choice whose text is not whole yet."""

    ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])


@dataclass(slots=True, eq=False)
class Ticket:
    """Numbers the events of one request. Ids wait for their text, so that every event shows something."""

    id: RequestId
    arrived: float  # seconds, on the decoder's clock
    job: Job | None = None  # a durable prompt: settled when the result is out
    reply: str = ""  # a request/reply prompt: events go there too
    lane: Lane | None = None  # a durable prompt: its events go into the log
    told: History = field(default_factory=lambda: History("fresh"))  # by another decoder
    trace: RequestTrace | None = None
    cancelled: bool = False
    choices: list[Sequence] = field(default_factory=list[Sequence])  # once it is accepted
    _seq: int = 0
    _held: dict[int, _Held] = field(default_factory=dict[int, _Held])
    _stretches: Stretches = field(default_factory=Stretches)

    def __post_init__(self) -> None:
        self._seq = self.told.next_seq
        self._stretches = Stretches([word for event in self.told.tokens for word in event.numerics])

    def go_on(self, numerics: Items[str]) -> None:
        """Behind an answer that its client kept, computed by such chains."""
        if numerics:
            self._stretches = Stretches(numerics)

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return all(sequence.answer.finish for sequence in self.choices)

    def progress(self, sequence: Sequence, delta: Delta, numerics: Numerics) -> list[Event]:
        """Events for what was just accepted, from such a chain; none while nothing can be shown."""
        if delta.ids:
            self._stretches.computed(numerics)
        held = self._held.setdefault(sequence.choice, _Held())
        held.ids += delta.ids
        held.logprobs += delta.logprobs
        if not delta.text and not (delta.finish and held.ids):
            return []
        del self._held[sequence.choice]
        event = TokenEvent(
            request=self.id,
            seq=self._number(),
            text=delta.text,
            ids=tuple(held.ids),
            index=sequence.choice,
            logprobs=tuple(held.logprobs),
            numerics=self._stretches.tell(),
        )
        return [event]

    def final(self, now: float) -> FinalEvent:
        """The last event of answers that ended by a rule or were cancelled."""
        answer = self.choices[0].answer
        starts = [sequence.admitted for sequence in self.choices if sequence.admitted is not None]
        firsts = [sequence.first_token for sequence in self.choices if sequence.first_token is not None]
        return FinalEvent(
            request=self.id,
            seq=self._number(),
            text=answer.text,
            ids=tuple(answer.ids),
            finish_reason=answer.finish or "error",
            usage=self._usage(),
            timings=Timings(
                queued=self._since(min(starts, default=now)),
                first_token=self._since(min(firsts, default=now)),
                total=self._since(now),
            ),
            logprobs=tuple(answer.logprobs),
            choices=tuple(map(_choice, self.choices)) if len(self.choices) > 1 else (),
            numerics=self._stretches.all,
        )

    def failed(self, error: PromptError, now: float) -> FinalEvent:
        """The last event of a prompt that cannot be answered, or not any further."""
        told = [event for event in self.told.tokens if event.index == 0]
        answer = self.choices[0].answer if self.choices else None
        return FinalEvent(
            request=self.id,
            seq=self._number(),
            text=answer.text if answer else "".join(event.text for event in told),
            ids=tuple(answer.ids) if answer else tuple(token for event in told for token in event.ids),
            finish_reason="error",
            usage=self._usage(),
            timings=Timings(queued=0.0, first_token=0.0, total=self._since(now)),
            error=error.as_fields(),
            numerics=self._stretches.all,
        )

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.choices[0].prompt_length if self.choices else 0,
            cached_tokens=self.choices[0].cached if self.choices else 0,
            completion_tokens=sum(len(sequence.answer.ids) for sequence in self.choices),
            drafted_tokens=sum(sequence.drafts.checked for sequence in self.choices),
            accepted_tokens=sum(sequence.drafts.accepted for sequence in self.choices),
        )

    def _number(self) -> int:
        number = self._seq
        self._seq += 1
        return number

    def _since(self, moment: float) -> float:
        return round((moment - self.arrived) * 1e3, 3)


def _choice(sequence: Sequence) -> Choice:
    answer = sequence.answer
    return Choice(
        text=answer.text,
        ids=tuple(answer.ids),
        finish_reason=answer.finish or "error",
        logprobs=tuple(answer.logprobs),
    )
