"""Where prompts come from: the durable queue and request/reply; and the wish to stop one."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, Protocol
from uuid import uuid4

from engine.contract.errors import BrokerError, ErrorCode, PromptError
from engine.contract.ids import RequestId
from engine.contract.prompt import PromptRequest, parse_prompt, peek_id
from engine.decoder.admission import now
from engine.decoder.ticket import Ticket
from engine.transport.base import Inbox, Job, Transport, WorkQueue
from engine.transport.subjects import Subjects

TAKE_SECONDS: Final = 2.0  # one pull request waits that long at the broker
KEEP_SECONDS: Final = 10.0  # a third of the queue's ack wait
BACKOFF_SECONDS: Final = 0.5
log = logging.getLogger("shardline.decoder")


class Reception(Protocol):
    """Who opens requests or refuses them (the desk)."""

    room: asyncio.Event  # set while there are places

    def places(self) -> int:
        """How many more requests it takes."""
        ...

    async def accept(self, ticket: Ticket, request: PromptRequest) -> None:
        """Open a request."""
        ...

    def refuse(self, ticket: Ticket, error: PromptError) -> None:
        """End a request with an error event."""
        ...


class Intake:
    """Takes prompts while there is room and hands them to the desk."""

    def __init__(self, transport: Transport, subjects: Subjects, *, max_deliveries: int) -> None:
        self._transport, self._subjects = transport, subjects
        self._max_deliveries = max_deliveries
        self.jobs: dict[int, Job] = {}  # durable prompts not yet settled, by their place in the stream

    async def from_queue(self, queue: WorkQueue, desk: Reception) -> None:
        """Pull durable prompts for ever."""
        while True:
            await desk.room.wait()
            try:
                jobs = await queue.take(max(desk.places(), 1), timeout=TAKE_SECONDS)
            except BrokerError as error:
                log.warning("cannot take prompts: %s", error)
                await asyncio.sleep(BACKOFF_SECONDS)  # the broker says nothing when it is well again
                continue
            for job in jobs:
                await self._take(job, desk)

    async def _take(self, job: Job, desk: Reception) -> None:
        ticket = Ticket(peek_id(job.data) or RequestId(f"q{job.sequence}"), now(), job)
        try:
            request = parse_prompt(job.data)
            if job.deliveries > self._max_deliveries:
                reason = f"given up after {self._max_deliveries} deliveries without an answer"
                raise PromptError(ErrorCode.TOO_MANY_DELIVERIES, reason)
        except PromptError as error:
            desk.refuse(ticket, error)
            return
        if job.sequence in self.jobs:
            self.jobs[job.sequence] = job  # redelivered while we work on it: settle the newer delivery
            return
        await desk.accept(ticket, request)

    async def from_requests(self, inbox: Inbox, desk: Reception) -> None:
        """Take request/reply prompts for ever; a full house is answered at once."""
        while True:
            message = await inbox.get()
            ticket = Ticket(peek_id(message.data) or RequestId(uuid4().hex), now(), None, message.reply)
            try:
                request = parse_prompt(message.data)
                if desk.places() <= 0:
                    raise PromptError(ErrorCode.OVERLOADED, "all places are taken: try again in a few seconds")
            except PromptError as error:
                desk.refuse(ticket, error)
            else:
                await desk.accept(ticket, request)

    async def keep_jobs(self) -> None:
        """Tell the broker for ever that unsettled prompts are being worked on."""
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            for job in list(self.jobs.values()):
                await _try(job.keep())

    async def settle(self, job: Job, error: PromptError | None) -> None:
        """The result is out: remove the durable prompt, or bury it when it failed."""
        job = self.jobs.pop(job.sequence, job)
        await _try(job.done() if error is None else job.bury(f"{error.code}: {error}"))

    async def give_back(self) -> None:
        """Let another decoder have what is unsettled."""
        for job in list(self.jobs.values()):
            await _try(job.give_back(0.0))
        self.jobs.clear()


async def _try(action: Awaitable[None]) -> None:
    """A prompt that cannot be settled now comes back by itself; that is what the queue is for."""
    try:
        await action
    except BrokerError as error:
        log.warning("prompt not settled, it will come again: %s", error)
