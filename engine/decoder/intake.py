"""Where prompts come from: the durable queue and request/reply; and the wish to stop one."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, Protocol
from uuid import uuid4

from engine.contract.errors import RETRY_AFTER, BrokerError, ErrorCode, PromptError
from engine.contract.history import history, prompt_key
from engine.contract.ids import RequestId
from engine.contract.prompt import PromptRequest, parse_prompt, peek_id
from engine.decoder.admission import now
from engine.decoder.outbox import Lane
from engine.decoder.ticket import Ticket
from engine.transport.base import EventLog, Inbox, Job, Transport, WorkQueue
from engine.transport.durable import ACK_WAIT
from engine.transport.subjects import Subjects

TAKE_SECONDS: Final = 2.0  # one pull request waits that long at the broker
KEEP_SECONDS: Final = ACK_WAIT / 3
BACKOFF_SECONDS: Final = 0.5
CLOSED: Final = ("shardline.", "$")  # where nobody may have an answer sent
log = logging.getLogger("shardline.decoder")


class Reception(Protocol):
    """Who opens requests or refuses them (the desk)."""

    room: asyncio.Event  # set while there are places

    def places(self) -> int:
        """How many more requests it takes."""
        ...

    def answers(self, request: RequestId) -> bool:
        """Whether a request with this id is open here."""
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
        self.resumed = 0  # answers that another decoder began
        self.open = asyncio.Event()  # cleared: prompts are left to another pipeline
        self.open.set()
        self.taking = False  # the broker may hand us prompts at this moment
        self.jobs: dict[int, Job] = {}  # durable prompts not yet settled, by their place in the stream

    async def from_queue(self, queue: WorkQueue, events: EventLog, desk: Reception) -> None:
        """Pull durable prompts for ever."""
        while True:
            await self.open.wait()
            await desk.room.wait()
            self.taking = True
            try:
                for job in await queue.take(max(desk.places(), 1), timeout=TAKE_SECONDS):
                    await self._take(job, events, desk)
            except BrokerError as error:
                log.warning("cannot take prompts: %s", error)
                await asyncio.sleep(BACKOFF_SECONDS)  # the broker says nothing when it is well again
            finally:
                self.taking = False

    async def _take(self, job: Job, events: EventLog, desk: Reception) -> None:
        """Open what a job asks for, or go on with what another decoder began."""
        if job.sequence in self.jobs:
            self.jobs[job.sequence] = job  # redelivered while we work on it: settle the newer delivery
            return
        request, key = peek_id(job.data) or RequestId(f"q{job.sequence}"), prompt_key(job.sequence, job.data)
        if desk.answers(request):
            desk.refuse(Ticket(request, now(), job), twin(request))
            return
        try:
            told = history(await events.read(request), key)
        except BrokerError as error:
            log.warning("prompt %d is left for later: %s", job.sequence, error)
            await _try(job.give_back(BACKOFF_SECONDS))
            return
        if told.state == "finished":
            await _try(job.done())
        elif told.state == "foreign":
            desk.refuse(Ticket(request, now(), job), twin(request))
        else:
            ticket = Ticket(request, now(), job, lane=Lane(request, key, told.place), told=told)
            await self._open(ticket, job, desk)

    async def _open(self, ticket: Ticket, job: Job, desk: Reception) -> None:
        if ticket.told.state == "begun":
            self.resumed += 1
            place = ticket.told.next_seq - 1
            log.info("request %s goes on behind event %d", ticket.id, place, extra={"request": ticket.id})
        try:
            request = parse_prompt(job.data)
            if job.deliveries > self._max_deliveries + ticket.told.next_seq:  # what brought an event was not in vain
                reason = f"given up after {job.deliveries - 1} deliveries without an answer"
                raise PromptError(ErrorCode.TOO_MANY_DELIVERIES, reason)
        except PromptError as error:
            desk.refuse(ticket, error)
            return
        await desk.accept(ticket, request)

    async def from_requests(self, inbox: Inbox, desk: Reception) -> None:
        """Take request/reply prompts for ever; a full house is answered at once."""
        while True:
            message = await inbox.get()
            if message.reply.startswith(CLOSED):  # we may publish there, who asks may not: it would borrow our rights
                log.warning("ignored a prompt that wants its answer on %s", message.reply)
                continue
            ticket = Ticket(peek_id(message.data) or RequestId(uuid4().hex), now(), None, message.reply)
            try:
                request = parse_prompt(message.data)
                if not self.open.is_set():
                    raise PromptError(
                        ErrorCode.OVERLOADED, "this pipeline lacks a stage, another one serves: ask again"
                    )
                if desk.places() <= 0:
                    raise PromptError(ErrorCode.OVERLOADED, f"all places are taken: try again in {RETRY_AFTER} s")
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

    def forget(self, job: Job) -> None:
        """Somebody else answers it: its acknowledgement is theirs."""
        self.jobs.pop(job.sequence, None)

    async def give_back(self) -> None:
        """Let another decoder have what is unsettled."""
        for job in list(self.jobs.values()):
            await self.give_back_one(job)

    async def give_back_one(self, job: Job) -> None:
        """Let another decoder have a prompt."""
        await _try(self.jobs.pop(job.sequence, job).give_back(0.0))


def twin(request: RequestId) -> PromptError:
    """What a request is refused with while another of its id is open."""
    return PromptError(ErrorCode.DUPLICATE_ID, f"a request {request!r} is already being answered")


async def _try(action: Awaitable[None]) -> None:
    """A prompt that cannot be settled now comes back by itself; that is what the queue is for."""
    try:
        await action
    except BrokerError as error:
        log.warning("prompt not settled, it will come again: %s", error)
