"""The gateway's figures: answers by route and status."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from engine.gateway.counting import REQUESTS, Counting, samples


def counted(*paths: str, fails: bool = False) -> dict[tuple[str, str], float]:
    """(route, status) after these requests to an application that answers 200, or goes before it does."""

    async def app(_: Scope, __: Receive, send: Send) -> None:
        if fails:
            raise asyncio.CancelledError
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def nothing(*_: Any) -> Message:
        return {}

    counting = Counting(app)
    for path in paths:
        try:
            asyncio.run(counting({"type": "http", "path": path}, nothing, nothing))  # type: ignore[arg-type]
        except asyncio.CancelledError:
            continue
    found = samples(counting, "default", 0, 0)
    return {(s.labels["route"], s.labels["status"]): s.value for s in found if s.metric is REQUESTS}  # type: ignore[misc]


def test_answers_count_by_route_and_status() -> None:
    path = "/v1/chat/completions"
    assert counted(path, path, "/healthz") == {(path, "200"): 2, ("/healthz", "200"): 1}


def test_paths_that_somebody_makes_up_are_one_route() -> None:
    assert counted("/a", "/b", "/v1/models/x") == {("other", "200"): 3}


@pytest.mark.parametrize("path", ["/v1/completions"])
def test_a_client_that_went_away_first_counts_as_gone(path: str) -> None:
    assert counted(path, fails=True) == {(path, "499"): 1}
