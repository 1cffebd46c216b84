"""One request from its body to its answer: whole or as server-sent events, ended when the client goes."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import ExitStack, aclosing
from typing import Any, Final

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.client.api import Shardline
from engine.contract.errors import BrokerError, ErrorCode, PromptError
from engine.contract.prompt import Event, FinalEvent, TokenEvent
from engine.gateway.asking import answered
from engine.gateway.calls import Call
from engine.gateway.errors import ApiError, from_prompt_error, unavailable
from engine.gateway.models import Models
from engine.gateway.replies import Reply
from engine.gateway.request import Asked

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream; charset=utf-8"


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, unless the client goes away first; then cancel it."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        done, _ = await asyncio.gather(*tasks, return_exceptions=True)
    if isinstance(done, BaseException) and not isinstance(done, asyncio.CancelledError):
        raise done


class Answering(Response):
    """An answer under way. Errors before the first event have a status of their own, later ones an event."""

    def __init__(
        self,
        pipeline: Shardline,
        call: Call,
        asked: Asked,
        reply: Reply,
        models: Models,
        release: ExitStack,
    ) -> None:
        """`release`: what it holds, given back at its end."""
        super().__init__()
        self._models, self._release = models, release
        self._pipeline, self._call, self._asked, self._reply = pipeline, call, asked, reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with self._release:
            await while_connected(receive, self._stream(send) if self._asked.stream else self._whole(send))

    async def _whole(self, send: Send) -> None:
        try:
            async with self._call.running(), aclosing(self._events()) as events:
                async for event in events:
                    if isinstance(event, FinalEvent):
                        await send_json(send, 200, self._reply.whole(event))
        except ApiError as error:
            await send_json(send, error.status, error.body(), error.headers)

    async def _stream(self, send: Send) -> None:
        begun = False
        try:
            async with self._call.running(), aclosing(self._events()) as events:
                async for event in events:
                    if not begun:
                        await _start(send, 200, EVENTS, {"cache-control": "no-store"})
                        await _more(send, *map(frame, self._reply.opening(self._asked.request.n)))
                        begun = True
                    if isinstance(event, TokenEvent):
                        await _more(send, *map(frame, self._reply.delta(event)))
                        continue
                    sums = [self._reply.usage(event)] if self._asked.include_usage else []
                    await _more(send, *map(frame, [*self._reply.closing(event), *sums]), b"data: [DONE]\n\n")
                    await _end(send)
        except ApiError as error:
            if not begun:
                await send_json(send, error.status, error.body(), error.headers)
                return
            await _more(send, frame(error.body()))
            await _end(send)

    async def _events(self) -> AsyncGenerator[Event]:
        """Events of the answer; everything foreseeable that goes wrong is an ApiError."""
        fields: dict[str, Any] = {**self._asked.fields, "id": self._call.id}
        try:
            async with aclosing(answered(self._pipeline, self._models, self._call, fields)) as events:
                async for event in events:
                    if isinstance(event, FinalEvent) and event.finish_reason == "cancelled":
                        raise ApiError(503, "the request was cancelled", code="cancelled")
                    if isinstance(event, TokenEvent):
                        self._call.tokens += len(event.ids)
                    yield event
        except PromptError as error:
            if error.code is ErrorCode.PROMPT_TOO_LONG and not error.field:
                field = "prompt" if "prompt" in fields else "messages"
                error = PromptError(error.code, str(error), field=field)
            raise from_prompt_error(error, self._asked.names) from error
        except BrokerError as error:
            raise unavailable(str(error)) from error


def frame(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


async def send_json(send: Send, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
    """A whole response."""
    await _start(send, status, JSON, headers or {})
    await send({"type": "http.response.body", "body": orjson.dumps(body)})


async def _start(send: Send, status: int, media: str, headers: dict[str, str]) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in {"content-type": media, **headers}.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def _more(send: Send, *parts: bytes) -> None:
    if parts:
        await send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})


async def _end(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})
