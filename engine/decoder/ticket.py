"""The client's side of one request: numbered events, and where its prompt came from."""

from dataclasses import dataclass, field

from engine.contract.errors import PromptError
from engine.contract.ids import RequestId
from engine.contract.prompt import Event, FinalEvent, Timings, TokenEvent, Usage
from engine.decoder.answer import Delta
from engine.decoder.sequence import Sequence
from engine.transport.base import Job


@dataclass(slots=True, eq=False)
class Ticket:
    """Numbers the events of one request. Ids wait for their text, so that every event shows something."""

    id: RequestId
    arrived: float  # seconds, on the decoder's clock
    job: Job | None = None  # a durable prompt: settled when the result is out
    reply: str = ""  # a request/reply prompt: events go there too
    cancelled: bool = False
    _seq: int = 0
    _ids: list[int] = field(default_factory=list[int])

    def progress(self, delta: Delta) -> list[Event]:
        """Events for what was just accepted; none while nothing can be shown."""
        self._ids += delta.ids
        if not delta.text and not (delta.finish and self._ids):
            return []
        event = TokenEvent(request=self.id, seq=self._number(), text=delta.text, ids=tuple(self._ids))
        self._ids.clear()
        return [event]

    def final(self, sequence: Sequence, now: float) -> Event:
        """The last event of an answer that ended by a rule or was cancelled."""
        answer = sequence.answer
        return FinalEvent(
            request=self.id,
            seq=self._number(),
            text=answer.text,
            ids=tuple(answer.ids),
            finish_reason=answer.finish or "error",
            usage=Usage(
                prompt_tokens=sequence.prompt_length,
                completion_tokens=len(answer.ids),
                cached_tokens=sequence.cached,
                drafted_tokens=sequence.drafts.checked,
                accepted_tokens=sequence.drafts.accepted,
            ),
            timings=Timings(
                queued=self._since(sequence.admitted or now),
                first_token=self._since(sequence.first_token or now),
                total=self._since(now),
            ),
        )

    def failed(self, error: PromptError, now: float, sequence: Sequence | None = None) -> Event:
        """The last event of a prompt that cannot be answered, or not any further."""
        answer = sequence.answer if sequence else None
        return FinalEvent(
            request=self.id,
            seq=self._number(),
            text=answer.text if answer else "",
            ids=tuple(answer.ids) if answer else (),
            finish_reason="error",
            usage=Usage(
                prompt_tokens=sequence.prompt_length if sequence else 0,
                completion_tokens=len(answer.ids) if answer else 0,
            ),
            timings=Timings(queued=0.0, first_token=0.0, total=self._since(now)),
            error={"code": error.code, "message": str(error)},
        )

    def _number(self) -> int:
        number = self._seq
        self._seq += 1
        return number

    def _since(self, moment: float) -> float:
        return round((moment - self.arrived) * 1e3, 3)
