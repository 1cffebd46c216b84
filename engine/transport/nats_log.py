# pyright: basic
"""The event log, on a JetStream stream that shows what it has taken to core NATS (docs/decisions/0011)."""

import asyncio
from typing import Any, Final

import orjson
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy, RePublish, RetentionPolicy, StorageType, StreamConfig

from engine.contract.errors import BrokerError, OvertakenError
from engine.contract.history import LoggedEvent
from engine.transport.durable import EVENT_MARGIN, LOG_AGE, LOG_BYTES
from engine.transport.nats_client import RepairedClient
from engine.transport.nats_jetstream import ANSWER_SECONDS, API_ERRORS, ensure_stream

CONFIRM_SECONDS: Final = 2.0  # within which the broker confirms an event, or it is sent again
BATCH: Final = 500  # events a read asks for at once
WRONG_LAST: Final = 10071
EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
PROMPT: Final = "Shardline-Prompt"
WRITER: Final = "Shardline-Writer"


async def open_log(
    client: RepairedClient, url: str, *, stream: str, subject: str, shown: str, writer: str
) -> "NatsEventLog":
    """The event log, its stream made if missing. Raises BrokerError."""
    config = StreamConfig(
        name=stream,
        subjects=[f"{subject}.*"],
        retention=RetentionPolicy.LIMITS,
        discard=DiscardPolicy.OLD,
        storage=StorageType.FILE,
        max_age=LOG_AGE,
        max_bytes=LOG_BYTES,
        allow_direct=True,
        republish=RePublish(src=f"{subject}.*", dest=f"{shown}.{{{{wildcard(1)}}}}"),
    )
    await ensure_stream(client.jetstream(timeout=ANSWER_SECONDS), url, config)
    log = NatsEventLog(client, stream, subject, writer)
    await log.start()
    return log


class NatsEventLog:
    """See EventLog. Answers of the broker come to one inbox: nats-py's own request costs several times as much."""

    def __init__(self, client: RepairedClient, stream: str, subject: str, writer: str) -> None:
        self._client, self._subject, self._writer = client, subject, writer
        self._get = f"$JS.API.DIRECT.GET.{stream}"
        self._inbox = client.new_inbox()
        self._asked: dict[str, asyncio.Queue[Msg]] = {}
        self._number = 0

    async def start(self) -> None:
        """Subscribe to answers; the client does it again by itself after a reconnect. Raises BrokerError."""
        try:
            await self._client.subscribe(f"{self._inbox}.*", cb=self._answered)
        except API_ERRORS as error:
            raise BrokerError(f"cannot subscribe: {error}") from error

    async def _answered(self, message: Msg) -> None:
        waiting = self._asked.get(message.subject)
        if waiting is not None:
            waiting.put_nowait(message)

    async def _ask(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> list[Msg]:
        """What the broker answers: one message, or as many as it takes until one with a status."""
        self._number += 1
        reply = f"{self._inbox}.{self._number}"
        answers = self._asked[reply] = asyncio.Queue()
        found: list[Msg] = []
        try:
            if not self._client.is_connected:
                raise BrokerError("not connected to the broker")
            async with asyncio.timeout(CONFIRM_SECONDS):
                await self._client.publish(subject, data, reply=reply, headers=headers)
                while not found or (headers is None and not _status(found[-1])):
                    found.append(await answers.get())
        except TimeoutError as error:
            raise BrokerError(f"the broker has not answered on {subject} within {CONFIRM_SECONDS} s") from error
        except API_ERRORS as error:
            raise BrokerError(f"cannot ask on {subject}: {error}") from error
        finally:
            del self._asked[reply]
        if _status(found[-1]) == "503":
            raise BrokerError(f"the broker does not have the stream behind {subject} at hand")
        return found

    async def read(self, request: str) -> list[LoggedEvent]:
        """See EventLog."""
        events: list[LoggedEvent] = []
        while True:
            first = events[-1].place + 1 if events else 1
            query = {"seq": first, "next_by_subj": f"{self._subject}.{request}", "batch": BATCH}
            *messages, end = await self._ask(self._get, orjson.dumps(query))
            events += map(_logged, messages)
            if not messages or (end.headers or {}).get("Nats-Num-Pending", "0") == "0":
                return events

    async def append(self, request: str, data: bytes, *, prompt: str, after: int) -> int:
        """See EventLog."""
        if len(data) > self._client.max_payload - EVENT_MARGIN:
            raise BrokerError(f"event of {len(data)} bytes, the broker takes {self._client.max_payload} (max_payload)")
        while True:
            headers = {EXPECTED: str(after), PROMPT: prompt, WRITER: self._writer}
            [answer] = await self._ask(f"{self._subject}.{request}", data, headers)
            fields: dict[str, Any] = orjson.loads(answer.data)
            error = fields.get("error")
            if error is None:
                return int(fields["seq"])
            if error.get("err_code") != WRONG_LAST:
                raise BrokerError(f"the broker does not take an event: {error.get('description')}")
            place, mine = await self._last(request, data)
            if mine:
                return place
            if place > after:
                raise OvertakenError(f"another decoder has gone on with request {request}")
            after = place  # the log has forgotten some: too old, too many, or a broker that lost what it had not stored

    async def _last(self, request: str, data: bytes) -> tuple[int, bool]:
        """Place of the last event, and whether it is the one that we wanted to add."""
        query = {"last_by_subj": f"{self._subject}.{request}"}
        headers: dict[str, str] = {}  # one answer only
        [message] = await self._ask(self._get, orjson.dumps(query), headers)
        if _status(message):
            return 0, False
        mine = message.data == data and (message.headers or {}).get(WRITER) == self._writer
        return _logged(message).place, mine


def _status(message: Msg) -> str:
    return (message.headers or {}).get("Status", "")


def _logged(message: Msg) -> LoggedEvent:
    headers = message.headers or {}
    return LoggedEvent(message.data, headers.get(PROMPT, ""), int(headers["Nats-Sequence"]))
