"""A broker in a dictionary, with the rules of the real one: for tests, and as their statement."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache

import orjson

from engine.contract.errors import BrokerError, NoResponderError
from engine.contract.figures import Link
from engine.transport.base import Incoming, QueueUse
from engine.transport.inbox import QueueInbox
from engine.transport.memory_durable import EventStore, LeaseCell, MemoryLease, MemoryLog, MemoryQueue, PromptStore
from engine.transport.memory_files import FileShelf, MemoryFiles


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
    max_prompts: int = 10_000
    subscriptions: list[Subscription] = field(default_factory=list[Subscription])
    queues: dict[str, PromptStore] = field(default_factory=dict[str, PromptStore])
    leases: dict[tuple[str, str], LeaseCell] = field(default_factory=dict[tuple[str, str], LeaseCell])
    logs: dict[str, EventStore] = field(default_factory=dict[str, EventStore])
    deliveries: int = 0  # to groups, in turn
    requests: int = 0  # made so far: each has its own inbox
    files: dict[str, FileShelf] = field(default_factory=dict[str, FileShelf])

    def publish(self, subject: str, data: bytes, reply: str, sender: "MemoryTransport") -> None:
        """Deliver to everybody subscribed, or tell the sender at `reply` that nobody is."""
        captures = [name for name, queue in self.queues.items() if queue.subject == subject]
        if not captures and not self._subscribed(subject):
            for subscription in self._subscribed(reply) if reply else []:
                if subscription.owner is sender:
                    subscription.inbox.put(reply, b"", no_responder=True)
            return
        for copy in [data] if self.intercept is None else list(self.intercept(subject, data)):
            for name in captures:
                self._capture(name, copy, reply)
            self._deliver(subject, copy, reply)

    def _subscribed(self, subject: str) -> list[Subscription]:
        return [s for s in self.subscriptions if s.owner.connected and matches(s.pattern, subject)]

    def _capture(self, name: str, data: bytes, reply: str) -> None:
        """Store a prompt; its publisher is told how that went if it wants to know."""
        try:
            answer: dict[str, object] = {"stream": name, "seq": self.queues[name].store(data).sequence}
        except BrokerError as error:
            answer = {"stream": name, "error": {"code": 503, "description": str(error)}}
        if reply:
            self._deliver(reply, orjson.dumps(answer), "")

    def _deliver(self, subject: str, data: bytes, reply: str) -> None:
        groups: defaultdict[str, list[Subscription]] = defaultdict(list)
        for subscription in self._subscribed(subject):
            if subscription.group:
                groups[subscription.group].append(subscription)
            else:
                subscription.inbox.put(subject, data, reply)
        for members in groups.values():
            chosen = members[self.deliveries % len(members)]
            self.deliveries += 1
            chosen.inbox.put(subject, data, reply)


@lru_cache(1 << 14)
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
    """See Transport. Set `connected` to False for an outage: nothing reaches it or leaves it until it is True again."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._online = asyncio.Event()
        self._online.set()
        self._link = Link()

    @property
    def connected(self) -> bool:
        """See Transport."""
        return self._online.is_set()

    @connected.setter
    def connected(self, connected: bool) -> None:
        if not connected:
            self._online.clear()
        elif not self.connected:
            self._link = replace(self._link, reconnects=self._link.reconnects + 1)
            self._online.set()
            for subscription in self._broker.subscriptions:
                if subscription.owner is self:
                    subscription.inbox.wake()

    async def online(self) -> None:
        """See Transport."""
        await self._online.wait()

    @property
    def max_payload(self) -> int:
        """See Transport."""
        return self._broker.max_payload

    @property
    def link(self) -> Link:
        """See Transport. What is received is not counted here."""
        return self._link

    async def publish(self, subject: str, data: bytes, *, reply: str = "") -> None:
        """See Transport."""
        self._check_connected()
        if len(data) > self.max_payload:
            raise BrokerError(f"message of {len(data)} bytes, the broker takes {self.max_payload} (max_payload)")
        sent = self._link
        self._link = replace(sent, sent_bytes=sent.sent_bytes + len(data), sent_messages=sent.sent_messages + 1)
        self._broker.publish(subject, bytes(data), reply, self)

    def new_inbox(self) -> str:
        """See Transport."""
        self._broker.requests += 1
        return f"_INBOX.{self._broker.requests}"

    async def rehearse(self, *subjects: str) -> None:
        """See Transport. Everything is allowed here."""
        self._check_connected()

    async def request(self, subject: str, data: bytes, *, timeout: float) -> Incoming:
        """See Transport."""
        reply = self.new_inbox()
        async with self.subscribe(reply) as inbox, asyncio.timeout(timeout):
            await self.publish(subject, data, reply=reply)
            answer = await inbox.get()
        if answer.no_responder:
            raise NoResponderError(f"nobody answers on {subject}")
        return answer

    @asynccontextmanager
    async def subscribe(
        self, subject: str, *, limit: int = 4096, group: str = "", wake: asyncio.Event | None = None
    ) -> AsyncGenerator[QueueInbox]:
        """See Transport."""
        self._check_connected()
        subscription = Subscription(tuple(subject.split(".")), group, QueueInbox(limit, wake), self)
        self._broker.subscriptions.append(subscription)
        try:
            yield subscription.inbox
        finally:
            self._broker.subscriptions.remove(subscription)

    async def barrier(self) -> None:
        """See Transport."""
        self._check_connected()

    async def work_queue(
        self, *, stream: str, subject: str, dead_stream: str, dead_subject: str, use: QueueUse = "put"
    ) -> MemoryQueue:
        """See Transport. Who looks makes it too: nobody else could tell."""
        self._check_connected()
        store = self._broker.queues.get(stream)
        if store is None:
            store = PromptStore(subject, self._broker.clock, self._broker.max_prompts)
            self._broker.queues[stream] = store

        async def publish_letter(letter: bytes) -> None:
            await self.publish(dead_subject, letter)

        return MemoryQueue(store, self._check_connected, publish_letter, self.max_payload)

    async def event_log(self, *, stream: str, subject: str, shown: str, writer: str = "") -> MemoryLog:
        """See Transport. Nobody writes to `subject` here: an appended event appears at `shown` at once."""
        self._check_connected()
        store = self._broker.logs.setdefault(stream, EventStore())

        def show(request: str, data: bytes) -> None:
            self._broker.publish(f"{shown}.{request}", data, "", self)

        return MemoryLog(store, self._check_connected, show, writer)

    async def file_store(self, *, stream: str, subject: str, create: bool) -> MemoryFiles | None:
        """See Transport."""
        self._check_connected()
        shelf = self._broker.files.get(stream)
        if shelf is None:
            if not create:
                return None
            shelf = self._broker.files[stream] = FileShelf(subject)
        return MemoryFiles(shelf, lambda: self.connected)

    async def streams_of(self, subject: str) -> list[str]:
        """See Transport. Of file stores only."""
        self._check_connected()
        pattern = tuple(subject.split("."))
        return [stream for stream, shelf in self._broker.files.items() if shelf.captures(pattern)]

    async def lease(self, *, bucket: str, key: str) -> MemoryLease:
        """See Transport."""
        self._check_connected()
        return MemoryLease(self._broker.leases.setdefault((bucket, key), LeaseCell()), self._check_connected)

    def _check_connected(self) -> None:
        if not self.connected:
            raise BrokerError("not connected to the broker")
