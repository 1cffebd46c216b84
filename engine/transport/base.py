"""The one seam between our code and the broker: bytes in, bytes out, and two durable things.

Rules that every transport keeps, the in-process twin included:
- order is kept per sender and subject; delivery is at most once;
- a publish with a `reply` to a subject that nobody subscribes to brings an `Incoming` with `no_responder` to `reply`,
  provided that the sender itself subscribes to `reply` (the broker tells nobody else: measured, nats-server 2.15);
- an inbox is bounded; what does not fit is dropped and counted, as the broker does with a slow consumer.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from engine.contract.figures import Link
from engine.contract.history import LoggedEvent


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message as it arrived."""

    subject: str
    data: bytes
    reply: str = ""
    no_responder: bool = False  # the broker's 503: nobody subscribes to the subject this answers for
    arrived: float = 0.0  # time.monotonic() when it entered the inbox, seconds


class Inbox(Protocol):
    """Messages of one subscription, in arrival order."""

    dropped: int

    @property
    def waiting(self) -> int:
        """Messages that have arrived and were not taken."""
        ...

    @property
    def oldest(self) -> float | None:
        """When the oldest waiting message arrived (time.monotonic()), or None."""
        ...

    async def get(self) -> Incoming:
        """The next message; waits for one."""
        ...

    def take(self) -> Incoming | None:
        """The next message if one is waiting."""
        ...


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Prompts in the durable queue."""

    pending: int  # waiting
    working: int  # handed out, not acknowledged
    redelivered: int  # of those, handed out more than once
    dead: int  # given up
    oldest: float = 0.0  # seconds since the oldest of them was stored, those handed out included; 0.0: there is none


class Stored(NamedTuple):
    """Where a prompt is in the queue."""

    sequence: int
    duplicate: bool = False  # it was there already, by its message id: this one is not stored


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A prompt that was given up."""

    place: int  # among the dead letters
    sequence: int  # of the prompt, when it was in the queue
    reason: str
    data: str  # the prompt, as text
    cut: bool = False  # it was too long to be kept whole


class Job(Protocol):
    """One prompt taken from the work queue. Unless settled it comes back after the queue's ack wait."""

    data: bytes
    sequence: int
    deliveries: int  # 1 the first time

    async def done(self) -> None:
        """Answered: remove it. Returns once the broker has confirmed."""
        ...

    async def keep(self) -> None:
        """Still being worked on: restart its ack wait."""
        ...

    async def give_back(self, delay: float) -> None:
        """Hand it to somebody else after `delay` seconds."""
        ...

    async def bury(self, reason: str) -> None:
        """Give it up: a dead letter {sequence, reason, data} is stored, the prompt removed."""
        ...


QueueUse = Literal["take", "put", "look"]  # prompts, prompts, at how many there are


class WorkQueue(Protocol):
    """The durable queue of prompts of one model."""

    async def put(self, data: bytes, *, message_id: str = "") -> Stored:
        """Store a prompt, once per message id. Raises OverloadedError, or BrokerError when the queue is missing."""
        ...

    async def take(self, limit: int, *, timeout: float) -> list[Job]:
        """Up to `limit` prompts, or fewer than there are, at most `timeout` seconds later; empty if there is none."""
        ...

    async def depth(self) -> QueueDepth:
        """How many prompts wait, are worked on, are dead."""
        ...

    async def letters(self) -> list[DeadLetter]:
        """The dead letters that are kept, the oldest first."""
        ...

    async def remove_letter(self, place: int) -> None:
        """Forget a dead letter; nothing happens when it is not there."""
        ...


class EventLog(Protocol):
    """Events of durable prompts, kept for a while: whoever listens sees only what the log has taken.

    It is the fence between decoders as well: an event is taken only behind the one that its writer knows as the last.
    """

    async def read(self, request: str) -> list[LoggedEvent]:
        """Everything kept under a request id, in order."""
        ...

    async def append(self, request: str, data: bytes, *, prompt: str, after: int) -> int:
        """Add an event behind the one at place `after` (0: there is none) and show it to listeners; its own place.

        Doing it again after a failure adds nothing twice. Raises OvertakenError when somebody else has added one,
        BrokerError when it may or may not have been added.
        """
        ...


class Kept(NamedTuple):
    """A chunk as it came from a file store."""

    data: bytes
    digest: str  # as it was given with it; not checked


class FileStore(Protocol):
    """Chunks of files under names (a subject's tokens), until they are removed or replaced.

    Each call raises ConnectionError when the link was lost meanwhile or the answer is late: it may be tried again.
    It raises BrokerError when the broker does not do it.
    """

    async def put(self, name: str, data: bytes, *, digest: str) -> None:
        """Keep a chunk, in place of what had that name; returns once the broker has it."""
        ...

    async def get(self, name: str) -> Kept | None:
        """The chunk of that name, None when there is none. The last token may be `*`: the newest of those."""
        ...

    async def names(self, group: str) -> set[str]:
        """The last token of each name `<group>.<token>` that is kept."""
        ...

    async def remove(self, names: str) -> None:
        """Forget one name, all of `<group>.*`, or all (`>`)."""
        ...


class Lease(Protocol):
    """One value under compare-and-set. Its revision is the epoch of the pipeline."""

    async def read(self) -> tuple[int, bytes] | None:
        """(revision, value), or None when there is none."""
        ...

    async def write(self, value: bytes, *, after: int) -> int:
        """Replace the value of revision `after` (0: there is none); the new, larger revision. Raises LeaseLostError."""
        ...


class Transport(Protocol):
    """A connection to the broker."""

    @property
    def max_payload(self) -> int:
        """Largest message the broker takes, in bytes, headers included."""
        ...

    @property
    def connected(self) -> bool:
        """Whether the broker is reachable right now, as far as known."""
        ...

    async def online(self) -> None:
        """Return once the broker is reachable."""
        ...

    @property
    def link(self) -> Link:
        """What went over this connection, and how often it was made anew: what was under way then may be lost."""
        ...

    async def publish(self, subject: str, data: bytes, *, reply: str = "") -> None:
        """Send; returns once the client has accepted it. Raises BrokerError when it is too large or not connected."""
        ...

    async def request(self, subject: str, data: bytes, *, timeout: float) -> Incoming:
        """Send and wait for one reply. Raises NoResponderError, or TimeoutError after `timeout` seconds."""
        ...

    def new_inbox(self) -> str:
        """A subject for answers to us that nobody else may listen to."""
        ...

    async def rehearse(self, *subjects: str) -> None:
        """Find out whether we may publish on these. Nobody must listen there: something empty is sent.

        Raises RefusedError, a BrokerError, naming the subject.
        """
        ...

    def subscribe(
        self, subject: str, *, limit: int = 4096, group: str = "", wake: asyncio.Event | None = None
    ) -> AbstractAsyncContextManager[Inbox]:
        """Subscribe; once entered, nothing sent to the subject from then on is missed.

        `limit` in messages. `wake` is set at each arrival, and whenever the connection was made anew: for a reader who
        waits for several things at once.
        """
        ...

    async def barrier(self) -> None:
        """Return once the broker has acted on everything sent so far."""
        ...

    async def work_queue(
        self, *, stream: str, subject: str, dead_stream: str, dead_subject: str, use: QueueUse = "put"
    ) -> WorkQueue:
        """The durable queue, for one use. It is created if missing, but not by who only wants to look.

        Raises BrokerError when the broker has no JetStream, or there is no queue to look at.
        """
        ...

    async def event_log(self, *, stream: str, subject: str, shown: str, writer: str = "") -> EventLog:
        """The event log, created if missing: events go in at `<subject>.<request>`, and out at `<shown>.<request>`.

        `writer` must be another one for each process that appends. Raises BrokerError when there is no JetStream.
        """
        ...

    async def file_store(self, *, stream: str, subject: str, create: bool) -> FileStore | None:
        """The file store, created if missing, or None. Raises BrokerError when the broker has no JetStream."""
        ...

    async def streams_of(self, subject: str) -> list[str]:
        """Names of the streams that capture a subject, which may be a pattern. Raises BrokerError likewise."""
        ...

    async def lease(self, *, bucket: str, key: str) -> Lease:
        """A lease, its bucket created if missing. Raises BrokerError when the broker has no JetStream."""
        ...
