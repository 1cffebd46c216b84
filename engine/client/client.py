"""Ask a pipeline from Python.

async with connect("nats://127.0.0.1:4222", name="me") as transport:
client = Client(transport, Subjects("default", "smollm2-135m-instruct"))
async for event in client.generate(prompt="Once upon a time", max_tokens=50):
print(event.text, end="", flush=True)
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import uuid4

import orjson

from engine.contract.errors import BrokerError, ErrorCode, PromptError
from engine.contract.ids import RequestId
from engine.contract.prompt import Event, FinalEvent, TokenEvent, decode_event
from engine.transport.base import Inbox, Transport
from engine.transport.subjects import Subjects


class Client:
    """Sends prompts, receives numbered events. Token events stream; the last one is a FinalEvent."""

    def __init__(self, transport: Transport, subjects: Subjects) -> None:
        self._transport, self._subjects = transport, subjects

    async def generate(self, **fields: Any) -> AsyncIterator[Event]:
        """Put a prompt into the durable queue and stream its answer. Fields: see `PromptRequest`.

        The prompt survives a restart of broker and decoder. Raises BrokerError when it cannot be stored or an event
        is missing; a prompt that cannot be answered ends in a FinalEvent with `error`.
        """
        request = RequestId(fields.get("id") or uuid4().hex)
        subjects = self._subjects
        async with self._transport.subscribe(subjects.tokens(request)) as inbox:
            queue = await self._transport.work_queue(
                stream=subjects.prompt_stream,
                subject=subjects.prompt,
                dead_stream=subjects.dead_stream,
                dead_subject=subjects.dead,
            )
            await queue.put(orjson.dumps({**fields, "id": request}), message_id=request)
            async for event in numbered(inbox):
                yield event

    async def generate_now(self, **fields: Any) -> AsyncIterator[Event]:
        """Ask whatever decoder listens right now, without the queue. Raises BrokerError when there is none."""
        request = RequestId(fields.get("id") or uuid4().hex)
        reply = f"{self._subjects.root}.reply.{request}"
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


async def numbered(inbox: Inbox) -> AsyncIterator[Event]:
    """Events in order up to the final one; repeated ones are dropped. Raises BrokerError at a gap."""
    expected = 0
    while True:
        message = await inbox.get()
        if message.no_responder:
            raise BrokerError("no decoder is running for this model: start decoder-run")
        event = decode_event(message.data)
        if event.seq < expected:
            continue
        if event.seq > expected:
            raise BrokerError(f"event {event.seq} of request {event.request} came, {expected} is missing")
        expected += 1
        yield event
        if not isinstance(event, TokenEvent):
            return


def prompt_error(error: Mapping[str, str]) -> PromptError:
    """The error of a final event as an exception."""
    return PromptError(ErrorCode(error["code"]), error["message"], field=error.get("field", ""))
