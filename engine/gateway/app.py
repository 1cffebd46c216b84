"""The HTTP side: routes, limits, error objects."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response, StreamingResponse

from engine.client.api import Shardline
from engine.contract.traces import Tracer, context_or_none
from engine.gateway.answering import EVENTS, Answering
from engine.gateway.calls import Call, Calls
from engine.gateway.errors import ApiError
from engine.gateway.keys import Key, Keys
from engine.gateway.live import MAX_PAGES, Live
from engine.gateway.models import Models
from engine.gateway.replies import ChatReply, CompletionReply, Head, Reply
from engine.gateway.request import Asked, Body, read_body, read_chat, read_completion
from engine.transport.base import Transport

BODY_SECONDS: Final = 30.0
PAGE: Final = Path(__file__).parent / "page"
FILES: Final = {"/": "text/html", "/live.css": "text/css", "/live.js": "text/javascript"}
POLICY: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class Gateway:
    """What the routes share."""

    def __init__(
        self,
        transport: Transport,
        models: Models,
        calls: Calls,
        keys: Keys,
        live: Live,
        *,
        max_body: int,
        tracer: Tracer | None = None,
    ) -> None:
        self._transport, self._max_body, self._tracer = transport, max_body, tracer
        self.models, self._calls, self._keys, self.live = models, calls, keys, live
        self._started = int(time.time())

    def key(self, request: Request) -> Key:
        """Who asks. Raises ApiError."""
        return self._keys.check(request.headers.get("authorization", ""))

    async def chat(self, request: Request) -> Response:
        """/v1/chat/completions."""
        return await self._answer(request, read_chat, ChatReply.to, endpoint="chat", prefix="chatcmpl")

    async def complete(self, request: Request) -> Response:
        """/v1/completions."""
        return await self._answer(request, read_completion, CompletionReply.to, endpoint="completions", prefix="cmpl")

    async def _answer(
        self,
        request: Request,
        read: Callable[[Body], Asked],
        reply_with: Callable[[Head, Asked], Reply],
        *,
        endpoint: str,
        prefix: str,
    ) -> Response:
        began, key = time.monotonic(), self.key(request)
        asked = read(read_body(await self._body(request)))
        call = Call(asked.model, endpoint, key.name)
        reply = reply_with(Head(f"{prefix}-{call.id}", asked.model, asked.include_usage), asked)
        pipeline = Shardline.over(self._transport, self.models.find(asked.model))
        with ExitStack() as held:
            held.enter_context(key.use())
            self._calls.add(call)
            held.callback(self._calls.remove, call)
            if self._tracer:
                parent = context_or_none(request.headers.get("traceparent", ""))
                span = self._tracer.start(f"POST {request.url.path}", parent, began)
                asked.fields["traceparent"] = span.context
                held.callback(span.end)
            return Answering(pipeline, call, asked, reply, self.models, held.pop_all())

    async def _body(self, request: Request) -> bytes:
        """All of it, bounded. JSON by name only: what a foreign page can send without asking is not."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, "the content-type must be application/json", code="unsupported_media_type")
        data = b""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    data += part
                    if len(data) > self._max_body:
                        reason = f"the body is larger than {self._max_body} bytes"
                        raise ApiError(413, reason, code="request_too_large")
        except TimeoutError:
            raise ApiError(408, f"the body took longer than {BODY_SECONDS:g} s", code="request_timeout") from None
        return data

    async def list_models(self, request: Request) -> Response:
        """/v1/models."""
        self.key(request)
        return JSONResponse({"object": "list", "data": [self._model(name) for name in self.models.names]})

    async def show_model(self, request: Request) -> Response:
        """/v1/models/{model}."""
        self.key(request)
        name = request.path_params["model"]
        if name not in self.models.names:
            raise ApiError(404, f"the model {name!r} does not exist", code="model_not_found", param="model")
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "shardline"}

    async def refuse_embeddings(self, request: Request) -> Response:
        """/v1/embeddings."""
        self.key(request)
        raise ApiError(404, "embeddings are not served: these models write text", code="unsupported_endpoint")

    async def health(self, request: Request) -> Response:
        """200 when something is served, and everything that was named at the start; else 503 with the reasons."""
        outages = {name: self.models.outage(name) for name in self.models.names}
        well = "" in outages.values() and not any(outages[name] for name in self.models.named)
        return JSONResponse({"ok": well, "models": outages}, 200 if well else 503)

    async def events(self, request: Request) -> Response:
        """The live page's data."""
        self.key(request)
        if self.live.pages >= MAX_PAGES:
            raise ApiError(429, f"{MAX_PAGES} live pages are open: close one", code="overloaded")
        return StreamingResponse(self.live.events(), media_type=EVENTS, headers={"cache-control": "no-store"})

    async def page(self, request: Request) -> Response:
        """The live page; it holds no data."""
        path = request.url.path
        name = "index.html" if path == "/" else path[1:]
        return Response((PAGE / name).read_bytes(), media_type=FILES[path], headers=POLICY)


def make_app(gateway: Gateway) -> FastAPI:
    """All routes."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_api_route("/v1/chat/completions", gateway.chat, methods=["POST"], response_model=None)
    app.add_api_route("/v1/completions", gateway.complete, methods=["POST"], response_model=None)
    app.add_api_route("/v1/models", gateway.list_models, methods=["GET"], response_model=None)
    app.add_api_route("/v1/models/{model}", gateway.show_model, methods=["GET"], response_model=None)
    app.add_api_route("/v1/embeddings", gateway.refuse_embeddings, methods=["POST"], response_model=None)
    for path in ("/healthz", "/health"):  # the second is what tools for other servers look for
        app.add_api_route(path, gateway.health, methods=["GET"], response_model=None)
    app.add_api_route("/live", gateway.events, methods=["GET"], response_model=None)
    for path in FILES:
        app.add_api_route(path, gateway.page, methods=["GET"], response_model=None)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    return app


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status, error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "method_not_allowed" if error.status_code == 405 else "unknown_url"
    found = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}", code=code)
    return JSONResponse(found.body(), found.status, error.headers)


async def _bug(_: Request, error: Exception) -> Response:
    found = ApiError(500, "an error of the gateway; its log has the details", code="internal")
    return JSONResponse(found.body(), 500)
