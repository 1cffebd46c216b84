"""The clients' side of the decoder: takes requests in, sends their events out, settles their prompts."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress

from engine.contract.errors import ErrorCode, PromptError
from engine.contract.ids import RequestId
from engine.contract.prompt import Event, FinalEvent, PromptRequest, encode_event
from engine.contract.traces import Tracer
from engine.decoder.admission import Admission, now
from engine.decoder.core import DecoderCore, Progress
from engine.decoder.intake import Intake, twin
from engine.decoder.ledger import Ledger
from engine.decoder.numerics import Numerics
from engine.decoder.outbox import Lane, Outbox
from engine.decoder.resume import resume
from engine.decoder.sequence import Sequence
from engine.decoder.ticket import Ticket
from engine.decoder.traced import RequestTrace
from engine.decoder.waiting import next_deadline, overdue
from engine.transport.base import Job
from engine.transport.subjects import Subjects

MAX_IDLE_LOSSES = 5  # epochs lost in a row without one new token: the prompt itself is suspected
log = logging.getLogger("shardline.decoder")


class Desk:
    """Every open request has a ticket here, from its arrival to its final event."""

    def __init__(
        self,
        core: DecoderCore,
        admission: Admission,
        subjects: Subjects,
        intake: Intake,
        outbox: Outbox,
        *,
        places: int,
        tracer: Tracer | None = None,
    ) -> None:
        self._core, self._admission, self._subjects, self._tracer = core, admission, subjects, tracer
        self._intake, self._outbox, self._places = intake, outbox, places
        outbox.overtaken = self.overtaken
        self._tickets: dict[RequestId, Ticket] = {}
        self._unsettled: asyncio.Queue[tuple[Ticket, PromptError | None]] = asyncio.Queue()  # bounded by places
        self.work = asyncio.Event()  # something changed: look for steps again
        self._timed = asyncio.Event()  # somebody with a deadline waits
        self.room = asyncio.Event()
        self.room.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.ledger = Ledger()
        self.numerics = Numerics("")  # of the present epoch, or of the last one

    def answers(self, request: RequestId) -> bool:
        """Whether a request with this id is open here."""
        return request in self._tickets

    @property
    def open_requests(self) -> int:
        """Requests without their final event."""
        return len(self._tickets)

    def places(self) -> int:
        """How many more requests this process takes."""
        return self._places - len(self._tickets)

    async def accept(self, ticket: Ticket, request: PromptRequest) -> None:
        """Open a request; a bad one is refused with its reason."""
        if ticket.id in self._tickets:
            self.refuse(ticket, twin(ticket.id))
            return
        self._tickets[ticket.id] = ticket  # before any await: ids stay unique
        self._idle.clear()
        if ticket.job:
            self._intake.jobs[ticket.job.sequence] = ticket.job
        if self.places() <= 0:
            self.room.clear()
        if self._tracer:
            ticket.trace = RequestTrace(self._tracer, ticket.id, request.traceparent, ticket.arrived)
        try:
            choices = await asyncio.to_thread(self._choices, ticket, request)
            for sequence in choices:
                self._check_fit(sequence)
        except PromptError as error:
            self.refuse(ticket, error)
            return
        ticket.choices = choices
        ticket.go_on([word for one in request.told for word in one.numerics])
        for sequence in choices:
            sequence.trace = ticket.trace.context if ticket.trace else ""
        self._begin(ticket)

    def _begin(self, ticket: Ticket) -> None:
        if ticket.cancelled:
            self._end(ticket)
            return
        if ticket.done:  # all was told but that it is all
            self._finish(ticket, ticket.final(now()))
            return
        for sequence in ticket.choices:
            if not sequence.answer.finish:
                self._core.submit(sequence)
        self.work.set()
        if ticket.choices[0].deadline is not None:
            self._timed.set()

    def _choices(self, ticket: Ticket, request: PromptRequest) -> list[Sequence]:
        """Sequences for a request, as far as their answers were told. Raises PromptError. Slow."""
        if ticket.told.state == "torn":
            raise PromptError(ErrorCode.INTERNAL, "its decoder was lost, and the beginning of its answer is not kept")
        choices = self._admission.choices(request, ticket.id, ticket.arrived)
        try:
            resume(choices, [*request.told, *ticket.told.tokens])
        except (ValueError, IndexError) as error:
            raise PromptError(ErrorCode.INTERNAL, f"its answer cannot be continued here: {error}") from error
        return choices

    def overtaken(self, lane: Lane) -> None:
        """Another decoder answers a request now: forget it, and leave its prompt to that one."""
        ticket = self._tickets.get(lane.request)
        if ticket is None or ticket.lane is not lane:
            return
        for sequence in ticket.choices:
            self._core.remove(sequence)
        if ticket.job:
            self._intake.forget(ticket.job)
        self._close(ticket)

    async def hand_back(self) -> None:
        """Let another pipeline's decoder go on with every durable prompt, where this one's events end."""
        for ticket in list(self._tickets.values()):
            if ticket.job and ticket.choices:
                for sequence in ticket.choices:
                    self._core.remove(sequence)
                self._close(ticket)
                await self._intake.give_back_one(ticket.job)

    def _check_fit(self, sequence: Sequence) -> None:
        """Some stage may hold less than the model could; as with the model's own context, an answer ends there."""
        if (context := self._core.context) and sequence.limit > context:
            if len(sequence.tokens) >= context:
                raise PromptError(
                    ErrorCode.PROMPT_TOO_LONG,
                    f"{len(sequence.tokens)} tokens; with room for more the stages that serve this model take "
                    f"{context - 1}",
                )
            sequence.shorten(context)
        if not self._core.fits(sequence.limit):
            raise PromptError(
                ErrorCode.PROMPT_TOO_LONG,
                f"prompt and 'max_tokens' need a cache of {sequence.limit} tokens, more than the stages hold: "
                "lower 'max_tokens' or start the stages with a larger --kv-memory",
            )

    def refuse(self, ticket: Ticket, error: PromptError) -> None:
        """End a request with an error event, all its choices with it."""
        log.info("request %s refused: %s: %s", ticket.id, error.code, error, extra={"request": ticket.id})
        for sequence in ticket.choices:
            self._core.remove(sequence)
        self._finish(ticket, ticket.failed(error, now()), error)

    def cancel(self, request: RequestId) -> None:
        """Stop a request; unknown ids are ignored."""
        if (ticket := self._tickets.get(request)) is not None:
            ticket.cancelled = True
            if ticket.choices:
                self._end(ticket)

    def _end(self, ticket: Ticket) -> None:
        """Cancel every choice that has not ended."""
        unfinished = [sequence for sequence in ticket.choices if not sequence.answer.finish]
        for sequence in unfinished:
            self._core.remove(sequence)
        self.progress(Progress(sequence, sequence.answer.end("cancelled")) for sequence in unfinished)

    def progress(self, progress: Iterable[Progress]) -> None:
        """Send what a step brought; several choices of a request may end in one step, its final event follows them."""
        ended: dict[RequestId, Ticket] = {}
        failed: dict[RequestId, str] = {}
        for item in progress:
            ticket = self._tickets[item.sequence.request]
            for event in ticket.progress(item.sequence, item.delta, self.numerics):
                self._send(ticket, event)
            if item.failed:
                failed[ticket.id] = item.failed
            if item.failed or (item.delta.finish and ticket.done):
                ended[ticket.id] = ticket
        for ticket in ended.values():
            if reason := failed.get(ticket.id):
                text = f"what the answer must look like became too complex to be kept to: {reason}"
                self.refuse(ticket, PromptError(ErrorCode.FORMAT_TOO_COMPLEX, text))
            else:
                self._finish(ticket, ticket.final(now()))

    def refuse_misfits(self) -> None:
        """The pipeline may have become smaller: end what can never run on it."""
        for sequence in list(self._core.waiting):
            try:
                self._check_fit(sequence)
            except PromptError as error:
                self._refuse(sequence, error)

    def refuse_poison(self) -> None:
        """End what loses the pipeline again and again: it must not take the others with it for ever."""
        for sequence in list(self._core.waiting):
            if sequence.idle_losses >= MAX_IDLE_LOSSES:
                reason = f"given up: the pipeline was lost {sequence.idle_losses} times in a row on this request"
                self._refuse(sequence, PromptError(ErrorCode.INTERNAL, reason))
        self._timed.set()  # requests that ran wait again

    async def expire(self) -> None:
        """End requests whose deadline passes while they wait, for ever."""
        while True:
            self._timed.clear()
            self.refuse_overdue(now())
            deadline = next_deadline(self._core.waiting)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if deadline is None else deadline - now()):
                    await self._timed.wait()

    def refuse_overdue(self, moment: float) -> None:
        """End what should have begun by now and still waits."""
        reason = f"the answer had not begun when the deadline passed; it waited for {self._core.waits_for()}"
        for sequence in overdue(self._core.waiting, moment):
            self._refuse(sequence, PromptError(ErrorCode.DEADLINE_PASSED, reason))

    def _refuse(self, sequence: Sequence, error: PromptError) -> None:
        if (ticket := self._tickets.get(sequence.request)) is not None:  # not yet, by another of its choices
            self.refuse(ticket, error)

    def _send(self, ticket: Ticket, event: Event) -> None:
        data = encode_event(event)
        if self._tickets.get(ticket.id, ticket) is ticket:  # a refused twin must not speak among another's events
            if ticket.lane:
                self._outbox.put_logged(ticket.lane, data, final=isinstance(event, FinalEvent))
            elif not ticket.job:
                self._outbox.put(self._subjects.tokens(ticket.id), data)
        if ticket.reply:
            self._outbox.put(ticket.reply, data)

    def _finish(self, ticket: Ticket, final: FinalEvent, error: PromptError | None = None) -> None:
        self.ledger.ended(final)
        self._send(ticket, final)
        if ticket.job:
            self._unsettled.put_nowait((ticket, error))
        self._close(ticket, final)

    def _close(self, ticket: Ticket, final: FinalEvent | None = None) -> None:
        if ticket.trace:
            ticket.trace.end(ticket.choices, final, now())
            ticket.trace = None
        if self._tickets.get(ticket.id) is ticket:
            del self._tickets[ticket.id]
        self.room.set()
        self.work.set()
        if not self._tickets:
            self._idle.set()

    async def settle(self) -> None:
        """Settle durable prompts for ever, each only after its result is with the broker."""
        while True:
            ticket, error = await self._unsettled.get()
            if ticket.lane and ticket.lane.opened:
                await ticket.lane.ended.wait()
            if ticket.job:
                await self._settle(ticket.job, error, elsewhere=ticket.lane is not None and ticket.lane.overtaken)
            self._unsettled.task_done()

    async def _settle(self, job: Job, error: PromptError | None, *, elsewhere: bool) -> None:
        if elsewhere:
            self._intake.forget(job)
        else:
            await self._intake.settle(job, error)

    async def finished(self) -> None:
        """Return once every accepted request is answered and settled."""
        await self._idle.wait()
        await self._outbox.drained()
        await self._unsettled.join()
