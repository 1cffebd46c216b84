"""Ask a pipeline from Python.

async with connect("nats://127.0.0.1:4222", name="me") as transport:
client = Client(transport, Subjects("default", "smollm2-135m-instruct"))
async for event in client.generate(prompt="Once upon a time", max_tokens=50):
print(event.text, end="", flush=True)
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

import orjson

from engine.contract.errors import BrokerError, ErrorCode, FrameError, PromptError
from engine.contract.history import history, prompt_key
from engine.contract.ids import RequestId
from engine.contract.prompt import Event, FinalEvent, Timings, TokenEvent, Usage, decode_event
from engine.transport.base import Inbox, Transport
from engine.transport.durable import DUPLICATE_SECONDS, open_events, open_queue
from engine.transport.subjects import Subjects

QUIET_SECONDS: Final = 2.0  # without an event, until the log is asked; twice as long each time
MOST_QUIET_SECONDS: Final = 16.0


class Client:
    """Sends prompts, receives numbered events. Token events stream; the last one is a FinalEvent."""

    def __init__(self, transport: Transport, subjects: Subjects) -> None:
        self._transport, self._subjects = transport, subjects

    async def generate(self, **fields: Any) -> AsyncIterator[Event]:
        """Put a prompt into the durable queue and stream its answer. Fields: see `PromptRequest`.

        The prompt survives a restart of broker and decoder. The same prompt under an id of the last two minutes gets
        the same answer once it has begun; another prompt under that id ends in `duplicate_id`. Raises BrokerError when
        it cannot be stored or an event is missing; a prompt that cannot be answered ends in a FinalEvent with `error`.
        """
        request = RequestId(fields.get("id") or uuid4().hex)
        subjects = self._subjects
        async with self._transport.subscribe(subjects.tokens(request)) as inbox:
            log = await open_events(self._transport, subjects)
            queue = await open_queue(self._transport, subjects)
            data = orjson.dumps({**fields, "id": request})
            stored = await queue.put(data, message_id=request)
            key = prompt_key(stored.sequence, data)

            async def logged() -> tuple[Event, ...]:
                return history(await log.read(request), key).events

            if stored.duplicate and not await logged():  # nothing will come: the events are, or will be, another's
                yield _duplicate(request)
                return
            async for event in numbered(inbox, logged, patience=0.0 if stored.duplicate else QUIET_SECONDS):
                yield event

    async def generate_now(self, **fields: Any) -> AsyncIterator[Event]:
        """Ask whatever decoder listens right now, without the queue. Raises BrokerError when there is none."""
        request = RequestId(fields.get("id") or uuid4().hex)
        reply = self._transport.new_inbox()
        async with self._transport.subscribe(reply) as inbox:
            await self._transport.publish(self._subjects.generate, orjson.dumps({**fields, "id": request}), reply=reply)
            async for event in numbered(inbox):
                yield event

    async def cancel(self, request: RequestId | str) -> None:
        """Stop a request; its stream ends with `finish_reason` "cancelled"."""
        await self._transport.publish(self._subjects.cancel, request.encode())

    async def complete(self, **fields: Any) -> FinalEvent:
        """The whole answer at once. Raises PromptError when it ended in an error."""
        final: Event | None = None
        async for event in self.generate(**fields):
            final = event
        if not isinstance(final, FinalEvent):
            raise BrokerError("the stream of events ended without a final one")
        if final.error is not None:
            raise prompt_error(final.error)
        return final


def _duplicate(request: RequestId) -> FinalEvent:
    seconds = f"{DUPLICATE_SECONDS:.0f} s"
    message = f"a prompt with the id {request!r} was stored within the last {seconds}: ask with another id, or without"
    return FinalEvent(
        request=request,
        seq=0,
        text="",
        ids=(),
        finish_reason="error",
        usage=Usage(prompt_tokens=0, completion_tokens=0),
        timings=Timings(queued=0.0, first_token=0.0, total=0.0),
        error={"code": ErrorCode.DUPLICATE_ID, "message": message},
    )


async def numbered(
    inbox: Inbox, logged: Callable[[], Awaitable[Sequence[Event]]] | None = None, *, patience: float = QUIET_SECONDS
) -> AsyncIterator[Event]:
    """Events in order up to the final one; repeated ones are dropped.

    What is missing, or does not come within `patience` seconds because the connection was lost, is read from the log.
    Raises BrokerError at a gap that stays, and where the inbox had no room for the end of an answer that no log keeps.
    """
    expected = 0
    while True:
        arrived = await _next(inbox, patience if logged else None)
        patience = QUIET_SECONDS if arrived else min(2 * patience, MOST_QUIET_SECONDS)
        events = [event for event in [arrived] if event is not None]
        if logged and (arrived is None or arrived.seq > expected):
            try:
                events = [*await logged(), *events]
            except BrokerError:
                continue  # the broker is away: what comes next, or the next silence, asks again
        for event in events:
            if event.seq < expected:
                continue
            if event.seq > expected:
                raise BrokerError(f"event {event.seq} of request {event.request} came, {expected} is missing")
            expected += 1
            yield event
            if not isinstance(event, TokenEvent):
                return


async def _next(inbox: Inbox, patience: float | None) -> Event | None:
    """The next event, or None when none came within `patience` seconds; None: no log keeps what was dropped.

    Raises BrokerError when there is no decoder, or nothing to wait for any more.
    """
    if patience is None and inbox.dropped and not inbox.waiting:
        lost = f"{inbox.dropped} events came faster than they were read and are lost"
        raise BrokerError(f"{lost}: read faster, or ask by way of the queue")
    try:
        async with asyncio.timeout(patience):
            message = await inbox.get()
    except TimeoutError:
        return None
    if message.no_responder:
        raise BrokerError("no decoder is running for this model: start decoder-run")
    try:
        return decode_event(message.data)
    except FrameError as error:
        raise BrokerError(f"the answer cannot be read: {error}; is the decoder of the same version?") from error


def prompt_error(error: Mapping[str, str]) -> PromptError:
    """The error of a final event as an exception; a code of a newer decoder's counts as internal."""
    code = error.get("code", "")
    known = ErrorCode(code) if code in set(ErrorCode) else ErrorCode.INTERNAL
    return PromptError(known, error.get("message", "the decoder does not say why"), field=error.get("field", ""))
