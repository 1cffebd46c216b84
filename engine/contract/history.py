"""What was told of an answer before: read back from the event log by a new decoder, or by a client that lost events."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.contract.prompt import Event, FinalEvent, TokenEvent, decode_event


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One event as the log keeps it."""

    data: bytes
    prompt: str  # key of the prompt it answers
    place: int  # in the log; later events have larger ones


def prompt_key(sequence: int, data: bytes) -> str:
    """Tells one durable prompt from every other, one that comes later with the same id included."""
    return f"{sequence}-{hashlib.sha256(data).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class History:
    """The latest answer under one request id.

    `state`: "fresh", nothing of this prompt yet; "finished", its final event is there; "begun"; "torn", begun, but the
    log no longer has all of it; "foreign", another prompt with this id is being answered.
    """

    state: Literal["fresh", "finished", "begun", "torn", "foreign"]
    events: tuple[Event, ...] = ()  # of this prompt's answer
    place: int = 0  # of the last event under this id, whosever it is

    @property
    def tokens(self) -> tuple[TokenEvent, ...]:
        """Events to go on from, in order."""
        return tuple(event for event in self.events if isinstance(event, TokenEvent))

    @property
    def next_seq(self) -> int:
        """Number of the event that is due."""
        return self.events[-1].seq + 1 if self.events else 0


def history(logged: Sequence[LoggedEvent], prompt: str) -> History:
    """Read what the log has of one request id, in order, for the prompt with that key."""
    if not logged:
        return History("fresh")
    place, last = logged[-1].place, decode_event(logged[-1].data)
    if logged[-1].prompt != prompt:
        return History("fresh" if isinstance(last, FinalEvent) else "foreign", place=place)
    events = tuple(decode_event(one.data) for one in logged if one.prompt == prompt)
    if isinstance(last, FinalEvent):
        return History("finished", events, place)
    whole = [event.seq for event in events] == list(range(len(events)))
    return History("begun" if whole else "torn", events, place)
