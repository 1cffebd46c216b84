"""Users who ask without end and know what they must be told."""

import asyncio
import random
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from bench.users import PROMPTS
from engine.client.client import Client
from engine.contract.errors import BrokerError
from engine.contract.prompt import Event, FinalEvent, decode_event
from engine.transport.durable import open_events
from engine.transport.nats import NatsTransport, connect
from engine.transport.subjects import Subjects

TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
AGAIN_SECONDS = 1.0  # before a prompt that could not be stored is sent again
HOWS: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.8, "seed": 7})  # the likeliest, and a seeded choice


@dataclass(slots=True)
class Asked:
    """One prompt, and what came of it."""

    request: str
    prompt: int
    how: int
    attempts: int = 0
    seconds: float = 0.0
    wrong: str = ""


class Users:
    """So many users, each with a connection of their own."""

    def __init__(self, url: str, slug: str, count: int, tokens: int, seed: int) -> None:
        self._url, self._count, self._tokens, self._seed = url, count, tokens, seed
        self._subjects = Subjects("default", slug)
        self._right: dict[tuple[int, int], FinalEvent] = {}
        self._links: list[NatsTransport] = []
        self._stack = AsyncExitStack()
        self._token = asyncio.Event()
        self._pauses: list[tuple[float, float]] = []  # when a token came, and how long after the one before
        self._last = time.monotonic()
        self.enough = asyncio.Event()

    async def __aenter__(self) -> Self:
        for number in range(self._count):
            link = connect(self._url, name=f"user-{number}")
            self._links.append(await self._stack.enter_async_context(link))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def learn(self) -> None:
        """Ask everything once while all is well."""
        client = Client(self._links[0], self._subjects)
        for prompt in range(len(PROMPTS)):
            for how in range(len(HOWS)):
                self._right[prompt, how] = await client.complete(**self._fields(prompt, how))

    def _fields(self, prompt: int, how: int) -> dict[str, Any]:
        text = TEMPLATE.replace("{}", PROMPTS[prompt])
        return {"prompt": text, "max_tokens": self._tokens, "ignore_eos": True, **HOWS[how]}

    async def ask(self) -> list[Asked]:
        """Ask until it is enough; all that was asked, answered."""
        async with asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(self._one_user(number)) for number in range(self._count)]
        return [one for task in asking for one in task.result()]

    async def _one_user(self, number: int) -> list[Asked]:
        chance, asked = random.Random(f"{self._seed}.{number}"), list[Asked]()
        while not self.enough.is_set():
            prompt, how = chance.randrange(len(PROMPTS)), chance.randrange(len(HOWS))
            one = Asked(f"chaos-{number}-{len(asked)}", prompt, how)
            began = time.monotonic()
            one.wrong = self._judge(one, await self._insist(one, self._links[number]))
            one.seconds = time.monotonic() - began
            asked.append(one)
        return asked

    async def _insist(self, one: Asked, link: NatsTransport) -> list[Event]:
        """Ask, under the same id again while it is not certain that the prompt was stored."""
        while True:
            one.attempts += 1
            events: list[Event] = []
            try:
                fields = self._fields(one.prompt, one.how)
                async for event in Client(link, self._subjects).generate(id=one.request, **fields):
                    events.append(event)
                    self._count_token()
            except BrokerError:
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            final = events[-1]
            assert isinstance(final, FinalEvent)
            if final.error is None or final.error["code"] != "duplicate_id":
                return events
            await asyncio.sleep(AGAIN_SECONDS)

    def _judge(self, one: Asked, events: list[Event]) -> str:
        final, right = events[-1], self._right[one.prompt, one.how]
        if [event.seq for event in events] != list(range(len(events))):
            return "events are missing or doubled"
        if isinstance(final, FinalEvent) and final.error is not None:
            return str(final.error)
        if final.ids != right.ids or final.text != right.text:
            return f"{final.text!r} instead of {right.text!r}"
        if "".join(event.text for event in events[:-1]) != right.text:
            return "the events do not add up to the answer"
        return ""

    async def check_log(self, asked: list[Asked]) -> None:
        """The event log holds every answer once."""
        log = await open_events(self._links[0], self._subjects)
        for one in asked:
            events = [decode_event(entry.data) for entry in await log.read(one.request)]
            finals = [isinstance(event, FinalEvent) for event in events]
            in_order = [event.seq for event in events] == list(range(len(events)))
            if not one.wrong and (finals.count(True) != 1 or not finals[-1] or not in_order):
                one.wrong = f"the log has {finals.count(True)} final events and {len(events)} in all"

    def _count_token(self) -> None:
        now = time.monotonic()
        self._pauses.append((now, now - self._last))
        self._last = now
        self._token.set()

    async def next_token(self) -> None:
        """Return once somebody got one."""
        self._token.clear()
        await self._token.wait()

    def longest_pause(self, *, since: float) -> float:
        """Seconds without a token for anybody, of the pauses that ended since then."""
        return max(pause for at, pause in self._pauses if at >= since)
