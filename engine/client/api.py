"""The Python API: ten lines to a streaming answer.

import asyncio
from engine.client.api import Shardline
from engine.contract.prompt import TokenEvent

async def main() -> None:
    async with Shardline("nats://127.0.0.1:4222") as pipeline:
        async for event in pipeline.stream("Why is the sky blue?", max_tokens=50):
            if isinstance(event, TokenEvent):  # the last one is a FinalEvent with the whole text
                print(event.text, end="", flush=True)

asyncio.run(main())
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack
from uuid import uuid4

from engine.client.client import Client, prompt_error
from engine.client.discover import reach
from engine.contract.errors import BrokerError
from engine.contract.prompt import DraftSource, Event, FinalEvent, TokenEvent
from engine.transport.address import BrokerUrl
from engine.transport.base import Transport
from engine.transport.subjects import Subjects


class PromptFields(TypedDict, total=False):
    """Fields of a prompt, as in `engine.contract.prompt.PromptRequest` and `engine.contract.sampling.Sampling`."""

    id: str  # made up where missing; needed to cancel from elsewhere
    prompt: str  # raw text, in place of a question
    messages: Sequence[Mapping[str, Any]]  # a chat, in place of a question
    max_tokens: int
    stop: str | Sequence[str]
    ignore_eos: bool
    n: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[str, float]
    seed: int
    logprobs: bool
    top_logprobs: int
    response_format: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]  # engine.contract.tool_calls.read_all finds the calls in a text
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    traceparent: str  # W3C trace context
    told: Sequence[Mapping[str, Any]]  # of an answer that goes on: see engine.contract.told
    draft: DraftSource
    draft_tokens: int
    priority: int
    deadline_ms: int


class Shardline:
    """One model of one deployment: `stream`, `generate`, `cancel`, while the context is open.

    Entering raises BrokerError without a broker, UsageError when no model, or more than one, is served and none named.
    """

    def __init__(
        self,
        nats: str = "nats://127.0.0.1:4222",
        *,
        deployment: str = "default",
        model: str = "",
        credentials: Path | None = None,
        tls_ca: Path | None = None,
    ) -> None:
        """`credentials`: the file of our key; `tls_ca`: the broker's authority (docs/security.md)."""
        if credentials or tls_ca or not isinstance(nats, BrokerUrl):
            nats = BrokerUrl(nats, credentials=credentials, tls_ca=tls_ca)
        self._nats, self._deployment, self._model = nats, deployment, model
        self._stack = AsyncExitStack()
        self._client: Client | None = None

    @classmethod
    def over(cls, transport: Transport, subjects: Subjects) -> Self:
        """The same over a connection that somebody else opens and closes; no context is needed."""
        made = cls(deployment=subjects.deployment, model=subjects.model)
        made._client = Client(transport, subjects)
        return made

    async def __aenter__(self) -> Self:
        reached = reach(self._nats, self._deployment, self._model, name="client")
        transport, subjects = await self._stack.enter_async_context(reached)
        self._model, self._client = subjects.model, Client(transport, subjects)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client = None
        await self._stack.aclose()

    @property
    def model(self) -> str:
        """The slug of the model that answers."""
        return self._model

    async def stream(
        self, question: str = "", *, durable: bool = False, **fields: Unpack[PromptFields]
    ) -> AsyncGenerator[Event]:
        """Token events as they come, a FinalEvent at the end. Whoever stops listening before it cancels the request.

        `question` is one user message; `messages` or `prompt` take its place. `durable`: through the queue that
        outlives broker and decoder; else it is refused at once where nobody has room.
        Raises PromptError when it cannot be answered, BrokerError when events are missing or nobody serves.
        """
        client, request = self._open(), fields.get("id") or uuid4().hex
        values: dict[str, Any] = {**fields, "id": request}
        if question:
            values["messages"] = [{"role": "user", "content": question}]
        ended = False
        try:
            async for event in client.generate(**values) if durable else client.generate_now(**values):
                ended = not isinstance(event, TokenEvent)
                if isinstance(event, FinalEvent) and event.error is not None:
                    raise prompt_error(event.error)
                yield event
        finally:
            if not ended:
                with suppress(BrokerError):  # nobody to tell
                    await client.cancel(request)

    async def generate(
        self, question: str = "", *, durable: bool = False, **fields: Unpack[PromptFields]
    ) -> FinalEvent:
        """The whole answer at once; see `stream`."""
        async for event in self.stream(question, durable=durable, **fields):
            if isinstance(event, FinalEvent):
                return event
        raise BrokerError("the stream of events ended without a final one")

    async def cancel(self, request: str) -> None:
        """Stop the request with this id; its stream ends with `finish_reason` "cancelled"."""
        await self._open().cancel(request)

    def _open(self) -> Client:
        if self._client is None:
            raise BrokerError("not connected: use 'async with Shardline(…) as pipeline'")
        return self._client
