"""`draft-run`'s service: a draft model for decoders elsewhere. Keeps what each sequence was, so that news suffice."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from engine.contract.drafts import (
    Draft,
    DraftRequest,
    RemoteDraftRequest,
    RemoteDrafts,
    decode_draft_requests,
    encode_drafts,
)
from engine.contract.errors import BrokerError, DeviceError, FrameError
from engine.contract.sampling import expand_sampling
from engine.service import run_until
from engine.transport.base import Inbox, Transport
from engine.transport.subjects import Subjects
from stages.draft_model import DraftModel

MAX_SEQUENCES: Final = 512  # remembered; what is forgotten is sent again
log = logging.getLogger("shardline.draft")


class DraftDesk:
    """From what came over the wire to what the model takes; no I/O."""

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self._known: dict[str, tuple[int, ...]] = {}

    def answer(self, data: bytes) -> bytes:
        """Drafts for one message. Raises FrameError, DeviceError."""
        remote = decode_draft_requests(data)
        known = [self._restore(request) for request in remote]
        asked = [
            DraftRequest(
                request.key,
                tokens,
                request.count,
                expand_sampling(request.how),
                request.least,
                request.ahead,
                request.kept,
            )
            for request, tokens in zip(remote, known, strict=True)
            if tokens
        ]
        found = iter(self._model.propose(asked))
        drafts: list[Draft | None] = [next(found) if tokens else None for tokens in known]
        return encode_drafts(
            RemoteDrafts(
                drafts=[list(draft.tokens) if draft else [] for draft in drafts],
                states=[draft.state if draft else "missing" for draft in drafts],
            )
        )

    def _restore(self, request: RemoteDraftRequest) -> tuple[int, ...]:
        """The whole sequence, or nothing when its beginning is not here."""
        before = self._known.pop(request.key, ())
        if len(before) < request.base:
            return ()
        tokens = self._known[request.key] = (*before[: request.base], *request.tokens)
        if len(self._known) > MAX_SEQUENCES:
            self._known.pop(next(iter(self._known)))
        return tokens


class DraftService:
    """Answers decoders until told to stop."""

    def __init__(
        self, transport: Transport, subjects: Subjects, load: Callable[[], DraftModel], announce: Callable[[str], None]
    ) -> None:
        """`load` blocks and runs in the thread that will compute."""
        self._transport, self._subjects, self._load, self._announce = transport, subjects, load, announce

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`; decoders go on without drafts then. Raises what `load` raises."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="draft")
        loop = asyncio.get_running_loop()
        try:
            desk = DraftDesk(await loop.run_in_executor(thread, self._load))
            async with self._transport.subscribe(self._subjects.draft, group="drafts") as inbox:
                self._announce(f"ready draft for {self._subjects.model}")
                await run_until(stop, self._serve(inbox, desk, thread))
        finally:
            thread.shutdown(wait=True, cancel_futures=True)

    async def _serve(self, inbox: Inbox, desk: DraftDesk, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message = await inbox.get()
            try:
                data = await loop.run_in_executor(thread, desk.answer, message.data)
                await self._transport.publish(message.reply, data)
            except (FrameError, DeviceError, BrokerError) as error:
                log.warning("a question stays unanswered: %s", error)
