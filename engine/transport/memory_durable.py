"""The durable things of the in-process twin: the queue of prompts, the event log and the lease."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from engine.contract.errors import RETRY_AFTER, BrokerError, LeaseLostError, OverloadedError, OvertakenError
from engine.contract.history import LoggedEvent
from engine.transport.base import DeadLetter, Job, QueueDepth, Stored
from engine.transport.durable import ACK_WAIT, DUPLICATE_SECONDS, dead_letter, read_letter


@dataclass(eq=False)
class Prompt:
    """One stored prompt. While handed out it is `due` when its ack wait is over, else when it may be handed out."""

    data: bytes
    sequence: int
    stored: float
    deliveries: int = 0
    due: float = 0.0


class PromptStore:
    """What the broker holds of one queue. `clock` in seconds; tests may own it."""

    def __init__(self, subject: str, clock: Callable[[], float], limit: int) -> None:
        self.subject = subject
        self.dead: dict[int, bytes] = {}  # by place
        self.buried = 0  # ever
        self._clock, self._limit = clock, limit
        self._sequence = 0
        self._pending: deque[Prompt] = deque()
        self._working: dict[int, Prompt] = {}
        self._stored: dict[str, tuple[float, int]] = {}  # message id: when, sequence
        self._changed = asyncio.Event()

    def store(self, data: bytes, message_id: str = "") -> Stored:
        """Keep a prompt, once per message id. Raises OverloadedError when the queue is full."""
        stored = self._stored.get(message_id)
        if stored and self._clock() - stored[0] < DUPLICATE_SECONDS:
            return Stored(stored[1], duplicate=True)
        if len(self._pending) + len(self._working) >= self._limit:
            raise OverloadedError(f"the prompt queue is full ({self._limit}): try again in {RETRY_AFTER} s")
        self._sequence += 1
        if message_id:
            self._stored[message_id] = (self._clock(), self._sequence)
        self._pending.append(Prompt(data, self._sequence, self._clock()))
        self._changed.set()
        return Stored(self._sequence)

    async def hand_out(self, limit: int, timeout: float) -> list[Prompt]:
        """Up to `limit` prompts that are due; waits at most `timeout` seconds for the first."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not (ready := self._ready()) and loop.time() < deadline:
            self._changed.clear()
            next_due = min((p.due for p in (*self._pending, *self._working.values())), default=float("inf"))
            wait = min(deadline - loop.time(), next_due - self._clock())
            try:
                async with asyncio.timeout(max(wait, 0.0)):
                    await self._changed.wait()
            except TimeoutError:
                continue
        for prompt in ready[:limit]:
            self._pending.remove(prompt)
            prompt.deliveries += 1
            prompt.due = self._clock() + ACK_WAIT
            self._working[prompt.sequence] = prompt
        return ready[:limit]

    def _ready(self) -> list[Prompt]:
        now = self._clock()
        for prompt in [prompt for prompt in self._working.values() if prompt.due <= now]:
            self.back(prompt.sequence, 0.0)
        return [prompt for prompt in self._pending if prompt.due <= now]

    def back(self, sequence: int, delay: float) -> None:
        """A prompt that was handed out is pending again."""
        prompt = self._working.pop(sequence, None)
        if prompt is not None:
            prompt.due = self._clock() + delay
            self._pending.appendleft(prompt)
            self._changed.set()

    def remove(self, sequence: int) -> None:
        """A prompt is gone, whoever holds it: the broker goes by its sequence number."""
        self._working.pop(sequence, None)
        self._pending = deque(prompt for prompt in self._pending if prompt.sequence != sequence)

    def restart(self, sequence: int) -> None:
        """A prompt is still being worked on."""
        if sequence in self._working:
            self._working[sequence].due = self._clock() + ACK_WAIT

    def depth(self) -> QueueDepth:
        """See WorkQueue."""
        redelivered = sum(prompt.deliveries > 1 for prompt in self._working.values())
        first = min((p.stored for p in (*self._pending, *self._working.values())), default=self._clock())
        oldest = self._clock() - first
        return QueueDepth(len(self._pending), len(self._working), redelivered, len(self.dead), oldest)


@dataclass(eq=False, slots=True)
class MemoryQueue:
    """See WorkQueue: one transport's hold on a store."""

    _store: PromptStore
    _check_connected: Callable[[], None]
    _publish_letter: Callable[[bytes], Awaitable[None]]
    _max_payload: int

    async def put(self, data: bytes, *, message_id: str = "") -> Stored:
        """See WorkQueue."""
        self._check_connected()
        if len(data) > self._max_payload:
            raise BrokerError(f"prompt of {len(data)} bytes, the broker takes {self._max_payload} (max_payload)")
        return self._store.store(bytes(data), message_id)

    async def take(self, limit: int, *, timeout: float) -> "list[Job]":
        """See WorkQueue."""
        try:
            self._check_connected()
        except BrokerError:  # as on the real broker: an outage looks like an empty queue
            await asyncio.sleep(timeout)
            return []
        prompts = await self._store.hand_out(limit, timeout)
        return [MemoryJob(self, prompt.data, prompt.sequence, prompt.deliveries) for prompt in prompts]

    async def depth(self) -> QueueDepth:
        """See WorkQueue."""
        return self.store().depth()

    async def letters(self) -> list[DeadLetter]:
        """See WorkQueue."""
        return [read_letter(place, letter) for place, letter in self.store().dead.items()]

    async def remove_letter(self, place: int) -> None:
        """See WorkQueue."""
        self.store().dead.pop(place, None)

    def store(self) -> PromptStore:
        """The store, if the broker can be reached. Raises BrokerError."""
        self._check_connected()
        return self._store

    async def bury(self, letter: bytes) -> None:
        """Keep a dead letter, and show it to whoever listens."""
        store = self.store()
        store.buried += 1
        store.dead[store.buried] = letter
        await self._publish_letter(letter)

    @property
    def max_payload(self) -> int:
        """Largest message, in bytes."""
        return self._max_payload


@dataclass(eq=False, slots=True)
class MemoryJob:
    """See Job."""

    _queue: MemoryQueue
    data: bytes
    sequence: int
    deliveries: int

    async def done(self) -> None:
        """See Job."""
        self._queue.store().remove(self.sequence)

    async def keep(self) -> None:
        """See Job."""
        self._queue.store().restart(self.sequence)

    async def give_back(self, delay: float) -> None:
        """See Job."""
        self._queue.store().back(self.sequence, delay)

    async def bury(self, reason: str) -> None:
        """See Job."""
        await self._queue.bury(dead_letter(self.sequence, reason, self.data, limit=self._queue.max_payload - 1024))
        await self.done()


@dataclass(slots=True)
class EventStore:
    """What the broker holds of one event log, with each event's writer."""

    events: defaultdict[str, list[tuple[LoggedEvent, str]]] = field(default_factory=lambda: defaultdict(list))
    place: int = 0


@dataclass(eq=False, slots=True)
class MemoryLog:
    """See EventLog: one transport's hold on a store."""

    _store: EventStore
    _check_connected: Callable[[], None]
    _show: Callable[[str, bytes], None]
    _writer: str

    async def read(self, request: str) -> list[LoggedEvent]:
        """See EventLog."""
        self._check_connected()
        return [event for event, _ in self._store.events[request]]

    async def append(self, request: str, data: bytes, *, prompt: str, after: int) -> int:
        """See EventLog."""
        self._check_connected()
        kept = self._store.events[request]
        last, writer = kept[-1] if kept else (LoggedEvent(b"", "", 0), "")
        if last.place != after:
            if (last.data, writer) == (data, self._writer):
                return last.place
            raise OvertakenError(f"event {last.place} of request {request} is not ours")
        self._store.place += 1
        kept.append((LoggedEvent(bytes(data), prompt, self._store.place), self._writer))
        self._show(request, bytes(data))
        return self._store.place


@dataclass(slots=True)
class LeaseCell:
    """What the broker holds of one lease."""

    value: tuple[int, bytes] | None = None


@dataclass(eq=False, slots=True)
class MemoryLease:
    """See Lease: one transport's hold on a cell."""

    _cell: LeaseCell
    _check_connected: Callable[[], None]

    async def read(self) -> tuple[int, bytes] | None:
        """See Lease."""
        self._check_connected()
        return self._cell.value

    async def write(self, value: bytes, *, after: int) -> int:
        """See Lease."""
        self._check_connected()
        revision = self._cell.value[0] if self._cell.value else 0
        if revision != after:
            raise LeaseLostError(f"the lease is at revision {revision}, not {after}: another decoder has taken it")
        self._cell.value = (revision + 1, value)
        return revision + 1
