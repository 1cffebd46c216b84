"""The gateway's own figures for Prometheus: answers by route and status, requests under way."""

import platform
from collections import Counter
from os import getpid
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.monitoring.metrics import Metric, Sample

ROUTES: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/embeddings", "/healthz", "/health"}
)
GONE: Final = "499"  # as nginx says it: the client went away before there was an answer
REQUESTS: Final = Metric("shardline_gateway_requests_total", "HTTP requests answered.", "counter")
OPEN: Final = Metric("shardline_gateway_requests_open", "Requests being answered.", "gauge")
PAGES: Final = Metric("shardline_gateway_pages_open", "Live pages that look.", "gauge")

AGAIN: Final = Metric(
    "shardline_gateway_requests_asked_again_total", "Times that an answer was gone on with elsewhere.", "counter"
)


class Counting:
    """Counts what passes through an application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.answered = Counter[tuple[str, str]]()  # (route, status)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = GONE

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            path = scope["path"]
            self.answered[path if path in ROUTES else "other", status] += 1


def samples(counting: Counting, deployment: str, open_requests: int, pages: int, asked_again: int = 0) -> list[Sample]:
    """The figures of this moment."""
    labels = {"deployment": deployment, "process": f"{platform.node()}:{getpid()}"}
    answered = [
        Sample(REQUESTS, labels | {"route": route, "status": status}, float(count))
        for (route, status), count in sorted(counting.answered.items())
    ]
    return [
        *answered,
        Sample(OPEN, labels, float(open_requests)),
        Sample(PAGES, labels, float(pages)),
        Sample(AGAIN, labels, float(asked_again)),
    ]
