"""Where a draft model runs: in this process, in a thread of its own, or in `draft-run` somewhere else."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final, Protocol

from engine.contract.drafts import (
    Draft,
    DraftRequest,
    RemoteDraftRequest,
    common_prefix,
    decode_drafts,
    encode_draft_requests,
)
from engine.contract.errors import BrokerError, DeviceError, FrameError
from engine.decoder.core import DecoderCore
from engine.decoder.drafting import DraftModelAccess
from engine.transport.base import Transport

REMOTE_SECONDS: Final = 2.0  # then the pipeline goes on without drafts
REST_SECONDS: Final = 5.0  # after a failure, before a draft model is asked again
MAX_KEYS: Final = 256  # sequences a remote model is thought to know
Proposer = Callable[[Sequence[DraftRequest]], list[Draft]]
log = logging.getLogger("shardline.decoder")


class Drafter(Protocol):
    """A draft model, wherever it is. One call at a time."""

    async def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, in order. Raises DeviceError, BrokerError, FrameError: nothing is drafted then."""
        ...


class ThreadDrafter:
    """Runs the model of this process away from the event loop."""

    def __init__(self, propose: Proposer, thread: Executor) -> None:
        """`propose` may block (stages.draft_model)."""
        self._propose, self._thread = propose, thread

    async def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See Drafter."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._propose, requests)


class RemoteDrafter:
    """Asks `draft-run`; sends only what it does not know yet."""

    def __init__(self, transport: Transport, subject: str) -> None:
        self._transport, self._subject = transport, subject
        self._told: dict[str, tuple[int, ...]] = {}

    async def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See Drafter."""
        drafts = await self._ask(requests)
        missing = [request for request, draft in zip(requests, drafts, strict=True) if draft is None]
        if missing:  # it was restarted, or has forgotten
            for request in missing:
                self._told.pop(request.key, None)
            again = dict(zip((request.key for request in missing), await self._ask(missing), strict=True))
            drafts = [draft or again[request.key] for request, draft in zip(requests, drafts, strict=True)]
        return [draft or Draft((), "behind") for draft in drafts]

    async def _ask(self, requests: Sequence[DraftRequest]) -> list[Draft | None]:
        message = encode_draft_requests([self._news(request) for request in requests])
        reply = await self._transport.request(self._subject, message, timeout=REMOTE_SECONDS)
        found = decode_drafts(reply.data)
        if not len(requests) == len(found.drafts) == len(found.states):
            raise FrameError(f"{len(found.drafts)} drafts for {len(requests)} requests")
        return [
            None if state == "missing" else Draft(tuple(tokens), state)
            for tokens, state in zip(found.drafts, found.states, strict=True)
        ]

    def _news(self, request: DraftRequest) -> RemoteDraftRequest:
        base = common_prefix(self._told.pop(request.key, ()), request.tokens)
        self._told[request.key] = request.tokens
        if len(self._told) > MAX_KEYS:
            self._told.pop(next(iter(self._told)))
        return RemoteDraftRequest(
            request.key,
            base,
            list(request.tokens[base:]),
            request.count,
            request.how.compact(),
            request.least,
            request.ahead,
            request.kept,
        )


class Drafting:
    """Keeps at most one question open to the draft model, while the pipeline goes on."""

    def __init__(self, core: DecoderCore, drafter: Drafter | None, work: asyncio.Event) -> None:
        """`work` is set when drafts have come."""
        self._core, self._drafter, self._work = core, drafter, work
        self._asked: list[DraftRequest] = []
        self._go = asyncio.Event()
        self._rests_until = 0.0
        self.failures = 0

    def start(self) -> None:
        """Ask for what the core wants now, if nothing is being asked."""
        if requests := self._core.draft(self._access()):
            self._asked = requests
            self._go.set()

    def _access(self) -> DraftModelAccess:
        if self._drafter is None or time.monotonic() < self._rests_until:
            return "absent"
        return "busy" if self._asked else "free"

    async def run(self) -> None:
        """Serve for ever."""
        while True:
            await self._go.wait()
            self._go.clear()
            began = time.monotonic()
            drafts = await self._propose(self._asked)
            self._core.drafted(self._asked, drafts, time.monotonic() - began)
            self._asked = []
            self._work.set()

    async def _propose(self, requests: list[DraftRequest]) -> list[Draft]:
        assert self._drafter is not None
        try:
            return await self._drafter.propose(requests)
        except (DeviceError, BrokerError, FrameError, TimeoutError) as error:
            self.failures += 1
            self._rests_until = time.monotonic() + REST_SECONDS
            log.warning("no drafts for %.0f s: %s", REST_SECONDS, error or "the draft model does not answer")
            return [Draft((), "behind")] * len(requests)
