"""A broker in a dictionary, with the rules of the real one: for tests, and as their statement."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson

from engine.contract.errors import BrokerError, LeaseLostError, NoResponderError
from engine.transport.base import Incoming, Job, QueueDepth
from engine.transport.inbox import QueueInbox

ACK_WAIT = 30.0  # seconds, as on the real broker


@dataclass(eq=False)
class Subscription:
    """One inbox on one subject pattern; of a group, one member gets each message."""

    pattern: tuple[str, ...]
    group: str
    inbox: QueueInbox
    owner: "MemoryTransport"


@dataclass
class MemoryBroker:
    """Subscriptions, queues and leases shared by the transports of one test."""

    max_payload: int = 1 << 20
    clock: Callable[[], float] = time.monotonic
    intercept: Callable[[str, bytes], Iterable[bytes]] | None = None
    """What becomes of a message on its way: nothing (lost), itself, itself twice, something else."""
    subscriptions: list[Subscription] = field(default_factory=list[Subscription])
    queues: dict[str, "MemoryQueue"] = field(default_factory=dict[str, "MemoryQueue"])
    leases: dict[tuple[str, str], "MemoryLease"] = field(default_factory=dict[tuple[str, str], "MemoryLease"])
    deliveries: int = 0  # to groups, in turn

    def publish(self, subject: str, data: bytes, reply: str, sender: "MemoryTransport") -> None:
        """Deliver to everybody subscribed, or tell the sender at `reply` that nobody is."""
        found = [s for s in self.subscriptions if matches(s.pattern, subject) and s.owner.connected]
        captured = [queue for queue in self.queues.values() if queue.subject == subject]
        for queue in captured:
            queue.store(data)
        if not found and not captured and reply:
            for subscription in self.subscriptions:
                if subscription.owner is sender and matches(subscription.pattern, reply):
                    subscription.inbox.put(reply, b"", no_responder=True)
            return
        copies = [data] if self.intercept is None else list(self.intercept(subject, data))
        for copy in copies:
            self._deliver(subject, copy, reply)

    def _deliver(self, subject: str, data: bytes, reply: str) -> None:
        groups: defaultdict[str, list[Subscription]] = defaultdict(list)
        for subscription in self.subscriptions:
            if not subscription.owner.connected or not matches(subscription.pattern, subject):
                continue
            if subscription.group:
                groups[subscription.group].append(subscription)
            else:
                subscription.inbox.put(subject, data, reply)
        for members in groups.values():
            chosen = members[self.deliveries % len(members)]
            self.deliveries += 1
            chosen.inbox.put(subject, data, reply)


def matches(pattern: tuple[str, ...], subject: str) -> bool:
    """Whether a subject fits a pattern with `*` (one token) and `>` (one or more at the end)."""
    tokens = subject.split(".")
    for i, part in enumerate(pattern):
        if part == ">":
            return len(tokens) > i
        if i >= len(tokens) or (part not in ("*", tokens[i])):
            return False
    return len(tokens) == len(pattern)


class MemoryTransport:
    """See Transport."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self.connected = True

    @property
    def max_payload(self) -> int:
        """See Transport."""
        return self._broker.max_payload

    async def publish(self, subject: str, data: bytes, *, reply: str = "") -> None:
        """See Transport."""
        if not self.connected:
            raise BrokerError("not connected to the broker")
        if len(data) > self.max_payload:
            raise BrokerError(f"message of {len(data)} bytes, the broker takes {self.max_payload} (max_payload)")
        self._broker.publish(subject, bytes(data), reply, self)

    async def request(self, subject: str, data: bytes, *, timeout: float) -> Incoming:
        """See Transport."""
        async with self.subscribe(f"_INBOX.{id(self)}.{time.monotonic_ns()}") as inbox, asyncio.timeout(timeout):
            own = ".".join(self._broker.subscriptions[-1].pattern)
            await self.publish(subject, data, reply=own)
            answer = await inbox.get()
        if answer.no_responder:
            raise NoResponderError(f"nobody answers on {subject}")
        return answer

    @asynccontextmanager
    async def subscribe(
        self, subject: str, *, limit: int = 4096, group: str = "", wake: asyncio.Event | None = None
    ) -> AsyncGenerator[QueueInbox]:
        """See Transport."""
        subscription = Subscription(tuple(subject.split(".")), group, QueueInbox(limit, wake), self)
        self._broker.subscriptions.append(subscription)
        try:
            yield subscription.inbox
        finally:
            self._broker.subscriptions.remove(subscription)

    async def barrier(self) -> None:
        """See Transport."""
        if not self.connected:
            raise BrokerError("not connected to the broker")

    async def work_queue(self, *, stream: str, subject: str, dead_stream: str, dead_subject: str) -> "MemoryQueue":
        """See Transport."""
        return self._broker.queues.setdefault(stream, MemoryQueue(subject, self._broker.clock))

    async def lease(self, *, bucket: str, key: str) -> "MemoryLease":
        """See Transport."""
        return self._broker.leases.setdefault((bucket, key), MemoryLease())


class MemoryQueue:
    """See WorkQueue."""

    def __init__(self, subject: str, clock: Callable[[], float], limit: int = 10_000) -> None:
        self.subject = subject
        self._clock, self._limit = clock, limit
        self._sequence = 0
        self._pending: deque[MemoryJob] = deque()
        self._working: dict[int, MemoryJob] = {}
        self._arrived = asyncio.Event()
        self.dead: list[dict[str, object]] = []

    async def put(self, data: bytes, *, message_id: str = "") -> int:
        """See WorkQueue."""
        return self.store(data)

    def store(self, data: bytes) -> int:
        """Keep a prompt. Raises BrokerError when the queue is full."""
        if len(self._pending) + len(self._working) >= self._limit:
            raise BrokerError(f"the prompt queue is full ({self._limit}): try again later")
        self._sequence += 1
        self._pending.append(MemoryJob(self, data, self._sequence))
        self._arrived.set()
        return self._sequence

    async def take(self, limit: int, *, timeout: float) -> "list[Job]":
        """See WorkQueue."""
        self._redeliver()
        if not self._ready():
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._arrived.wait()
            except TimeoutError:
                self._redeliver()
        jobs: list[Job] = []
        for job in self._ready()[:limit]:
            self._pending.remove(job)
            job.deliveries += 1
            job.due = self._clock() + ACK_WAIT
            self._working[job.sequence] = job
            jobs.append(job)
        return jobs

    async def depth(self) -> QueueDepth:
        """See WorkQueue."""
        redelivered = sum(job.deliveries > 1 for job in self._working.values())
        return QueueDepth(len(self._pending), len(self._working), redelivered, len(self.dead))

    def _ready(self) -> "list[MemoryJob]":
        return [job for job in self._pending if job.due <= self._clock()]

    def _redeliver(self) -> None:
        for job in [job for job in self._working.values() if job.due <= self._clock()]:
            self.back(job, 0.0)

    def back(self, job: "MemoryJob", delay: float) -> None:
        """A job is pending again."""
        if self._working.pop(job.sequence, None) is not None:
            job.due = self._clock() + delay
            self._pending.appendleft(job)
            self._arrived.set()

    def settle(self, job: "MemoryJob") -> None:
        """A job is gone."""
        self._working.pop(job.sequence, None)

    def restart(self, job: "MemoryJob") -> None:
        """A job is still being worked on."""
        job.due = self._clock() + ACK_WAIT


@dataclass(eq=False)
class MemoryJob:
    """See Job."""

    queue: MemoryQueue
    data: bytes
    sequence: int
    deliveries: int = 0
    due: float = 0.0

    async def done(self) -> None:
        """See Job."""
        self.queue.settle(self)

    async def keep(self) -> None:
        """See Job."""
        self.queue.restart(self)

    async def give_back(self, delay: float) -> None:
        """See Job."""
        self.queue.back(self, delay)

    async def bury(self, reason: str) -> None:
        """See Job."""
        self.queue.dead.append(orjson.loads(dead_letter(self.sequence, reason, self.data)))
        self.queue.settle(self)


def dead_letter(sequence: int, reason: str, data: bytes) -> bytes:
    """What is stored of a prompt that was given up."""
    return orjson.dumps({"sequence": sequence, "reason": reason, "data": data.decode(errors="replace")})


class MemoryLease:
    """See Lease."""

    def __init__(self) -> None:
        self._value: tuple[int, bytes] | None = None

    async def read(self) -> tuple[int, bytes] | None:
        """See Lease."""
        return self._value

    async def write(self, value: bytes, *, after: int) -> int:
        """See Lease."""
        revision = self._value[0] if self._value else 0
        if revision != after:
            raise LeaseLostError(f"the lease is at revision {revision}, not {after}: another decoder has taken it")
        self._value = (revision + 1, value)
        return revision + 1
