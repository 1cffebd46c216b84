"""Rules of the durable queue and the event log that broker and twin share, and how those of a model are opened."""

from typing import Final

import orjson

from engine.transport.base import DeadLetter, EventLog, QueueUse, Transport, WorkQueue
from engine.transport.subjects import Subjects

ACK_WAIT: Final = 8.0  # seconds without a sign of life until a prompt is handed to somebody else
MAX_PROMPTS: Final = 10_000  # waiting; more get an answer at once instead of an hour later
EVENT_MARGIN: Final = 512  # bytes of max_payload for the headers of an event
PROMPT_BYTES: Final = 128 * 1024 * 1024  # of all that wait: reserved, so that events of their answers have room too
LOG_AGE: Final = 3600.0  # seconds that events are kept
LOG_BYTES: Final = 128 * 1024 * 1024  # of all events, the oldest go first
MAX_DEAD: Final = 10_000  # dead letters kept, the oldest go first
DUPLICATE_SECONDS: Final = 120.0  # a prompt put again within it, with the same message id, is stored once


async def open_queue(transport: Transport, subjects: Subjects, *, use: QueueUse = "put") -> WorkQueue:
    """The queue of prompts of a model, for a use of it: see Transport.

    Raises BrokerError when there is no JetStream, or nothing to look at.
    """
    return await transport.work_queue(
        stream=subjects.prompt_stream,
        subject=subjects.prompt,
        dead_stream=subjects.dead_stream,
        dead_subject=subjects.dead,
        use=use,
    )


async def open_events(transport: Transport, subjects: Subjects, *, writer: str = "") -> EventLog:
    """The event log of a model, created if missing; `writer`: who appends. Raises BrokerError likewise."""
    return await transport.event_log(
        stream=subjects.event_stream, subject=subjects.events_root, shown=subjects.tokens_root, writer=writer
    )


def read_letter(place: int, data: bytes) -> DeadLetter:
    """A dead letter as it is stored."""
    fields = orjson.loads(data)
    return DeadLetter(place, fields["sequence"], fields["reason"], fields["data"], "bytes" in fields)


def dead_letter(sequence: int, reason: str, data: bytes, *, limit: int) -> bytes:
    """What is stored of a prompt that was given up: one JSON object of at most `limit` bytes.

    Bytes that are not UTF-8 are replaced. What does not fit is cut off, and `bytes` then says how much there was.
    """
    fields: dict[str, object] = {"sequence": sequence, "reason": reason[:1000], "data": data.decode(errors="replace")}
    while len(letter := orjson.dumps(fields)) > limit:
        text = str(fields["data"])
        fields |= {"data": text[: len(text) // 2], "bytes": len(data)}
    return letter
