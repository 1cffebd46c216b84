"""A whole pipeline in one process: real decoder, real workers, the memory transport, shards that are arithmetic.

The last shard's next token depends on every token before it, and it reads them from a block cache as a real one does:
an answer is right only if every step came, once, in order, with the right blocks.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.client.client import Client
from engine.contract.control import MAIN_PIPELINE
from engine.contract.copies import SlotCopy
from engine.contract.errors import DeviceError
from engine.contract.ids import Incarnation, StageIndex
from engine.contract.messages import Rows
from engine.contract.traces import Tracer
from engine.decoder.admission import Admission
from engine.decoder.config import DecoderConfig
from engine.decoder.constraint import ConstraintCompiler
from engine.decoder.drafters import Drafter
from engine.decoder.service import DecoderService
from engine.decoder.tokenizer import ByteStream, TextStream
from engine.transport.memory import MemoryBroker, MemoryTransport
from engine.transport.subjects import Subjects
from stages.checks import check_copies
from stages.draft_model import DraftModel
from stages.draft_service import DraftService
from stages.heartbeat import Loaded
from stages.identity import Identity, new_incarnation
from stages.place import Terms
from stages.runner import Capabilities
from stages.worker import PRIMARY, StageWorker
from tests.blockcache import BlockCache, digest
from tests.manifests import HIDDEN, VOCABULARY, manifest

BLOCK = 8
HEARTBEAT = 0.05  # seconds: tests that wait for one should not wait long
SUBJECTS = Subjects("test", "model")


def next_token(history: Sequence[int]) -> int:
    """The model: letters, depending on everything before."""
    return ord("a") + digest(history) % 26


def answer_to(prompt: str, count: int) -> str:
    history = list(prompt.encode())
    for _ in range(count):
        history.append(next_token(history))
    return bytes(history[len(prompt.encode()) :]).decode()


class ArithmeticShard:
    """Stage 0 passes token ids on as hidden states; the last stage keeps the cache and makes logits."""

    def __init__(
        self, *, last: bool, blocks: int = 64, poison: int = -1, script: Callable[[Sequence[int]], int] = next_token
    ) -> None:
        self.capabilities = Capabilities(
            kind="paged",
            blocks=blocks,
            block_size=BLOCK,
            slots=0,
            min_row_tokens=2,
            max_step_tokens=0,
            context_length=200,
        )
        self._last, self._poison, self._script = last, poison, script
        self._cache = BlockCache(blocks, BLOCK)

    def infer(self, rows: Rows, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not self._last:
            return value if value.ndim == 2 else np.repeat(value.astype(np.float32)[:, None], HIDDEN, axis=1)
        wanted: list[int] = []
        for row in self._cache.feed(rows, (value if value.ndim == 1 else value[:, 0]).astype(np.int64)):
            if self._poison in row.history:
                raise DeviceError("the device fails on this token")
            wanted += map(self._script, row.picks())
        return np.eye(VOCABULARY, dtype=np.float32)[wanted]

    def check(self) -> None:
        pass

    def copy_slots(self, copies: Sequence[SlotCopy]) -> None:
        raise AssertionError("only slots are copied")

    def reset(self) -> None:
        self._cache.clear()

    def close(self) -> None:
        pass


class SlotShard:
    """The same with a state per slot: a sequence's tokens."""

    def __init__(self, *, last: bool, slots: int) -> None:
        self.capabilities = Capabilities(
            kind="stateful",
            blocks=0,
            block_size=0,
            slots=slots,
            min_row_tokens=1,
            max_step_tokens=0,
            context_length=200,
        )
        self._last = last
        self._states: dict[int, list[int]] = {}
        self.copied: list[SlotCopy] = []

    def infer(self, rows: Rows, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        tokens, wanted, at = (value if value.ndim == 1 else value[:, 0]).astype(np.int64), [], 0
        for start, length, slot, picked_start, picked, _ in rows.table.tolist():
            held = self._states.get(slot, [])
            assert start <= len(held)
            history = self._states[slot] = held[:start] + tokens[at : at + length].tolist()
            wanted += [next_token(history[: start + i + 1]) for i in range(picked_start, picked_start + picked)]
            at += length
        if not self._last:
            return np.repeat(tokens.astype(np.float32)[:, None], HIDDEN, axis=1)
        return np.eye(VOCABULARY, dtype=np.float32)[wanted]

    def check(self) -> None:
        pass

    def copy_slots(self, copies: Sequence[SlotCopy]) -> None:
        check_copies(copies, {slot: len(tokens) for slot, tokens in self._states.items()}, self.capabilities.slots)
        for source, target, tokens in copies:
            self._states[target] = self._states[source][:tokens]
        self.copied += copies

    def reset(self) -> None:
        self._states.clear()

    def close(self) -> None:
        pass


class ByteTokenizer:
    """A token is a byte, or one of these pieces."""

    def __init__(self, pieces: Mapping[int, bytes] | None = None) -> None:
        self._pieces = [(pieces or {}).get(i, bytes([i])) for i in range(VOCABULARY)]

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._pieces[i] for i in ids).decode(errors="replace")

    def text_bytes(self) -> list[bytes]:
        return self._pieces

    chat_template = "{{ tools }} <tool_call>"

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        return "".join(message["content"] for message in messages)

    def stream(self, before: Sequence[int] = ()) -> TextStream:
        return ByteStream(self.pieces())

    def pieces(self) -> list[bytes]:
        return self._pieces


def config(**changes: Any) -> DecoderConfig:
    values: dict[str, Any] = {
        "shards": Path(),
        "nats": "",
        "deployment": "test",
        "pipeline": MAIN_PIPELINE,
        "max_running": 8,
        "max_waiting": 8,
        "prefill_tokens": 16,
        "steps_in_flight": 0,
        "smoothness": 1.6,
        "default_max_tokens": 10,
        "max_deliveries": 3,
        "step_timeout": 0.5,
        "draft": "none",
        "draft_tokens": None,
        "grace": 5.0,
    }
    return DecoderConfig(**(values | changes))


class Clock:
    """The broker's, in seconds; a test may let time pass."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class Pipeline:
    """Starts and kills the parts."""

    def __init__(
        self, broker: MemoryBroker, tasks: asyncio.TaskGroup, stages: int, heartbeat: float, **settings: Any
    ) -> None:
        self.broker, self.stages, self._tasks, self._settings = broker, stages, tasks, settings
        self._heartbeat = heartbeat
        self.transport = MemoryTransport(broker)
        self.client = Client(self.transport, SUBJECTS)
        self.links: list[MemoryTransport] = []  # of workers and decoders
        self.running: list[asyncio.Task[None]] = []
        self.workers: dict[int, asyncio.Task[None]] = {}  # by stage, the one started last
        self.services: list[StageWorker] = []
        self.shards: list[ArithmeticShard | SlotShard] = []
        self.decoders: list[DecoderService] = []
        self.serving = asyncio.Event()  # a decoder has opened its pipeline
        self.sources: tuple[str, ...] = ()
        self.drafter: Callable[[], Drafter | None] = lambda: None
        self.tokenizer = ByteTokenizer()
        self.compiler: ConstraintCompiler | None = None
        self.tracer: Tracer | None = None
        self.manifest: dict[str, Any] = {}  # fields of it that decoders started from now on see changed

    def draft_with(self, drafter: Callable[[], Drafter | None], *sources: str) -> None:
        """Decoders started from now on draft."""
        self.drafter, self.sources = drafter, sources

    async def start_draft_worker(self, model: DraftModel) -> asyncio.Task[None]:
        """A draft model for decoders elsewhere, once it is ready."""
        ready = asyncio.Event()
        service = DraftService(MemoryTransport(self.broker), SUBJECTS, lambda: model, lambda _: ready.set())
        task = self._start(service.run(asyncio.Event()))
        await ready.wait()
        return task

    async def start(self, stop: asyncio.Event | None = None, **shard: Any) -> list[asyncio.Task[None]]:
        """A decoder and all workers, serving; the workers' tasks, and the decoder's at the end.

        The decoder comes first and hears them become ready instead of waiting for their next heartbeat.
        """
        decoder = await self.start_decoder(stop)
        workers = [await self.start_worker(index, **shard) for index in range(self.stages)]
        await self.serving.wait()
        return [*workers, decoder]

    async def start_worker(
        self,
        index: int,
        *,
        pipeline: str = MAIN_PIPELINE,
        terms: Terms = PRIMARY,
        stop: asyncio.Event | None = None,
        numerics: str = "",
        replays: bool = True,
        **shard: Any,
    ) -> asyncio.Task[None]:
        """A worker, once it is ready. `numerics`, `replays`: what its self-test found."""
        identity = Identity(
            stage=StageIndex(index),
            stages=self.stages,
            first_layer=index,
            last_layer=index + 1,
            incarnation=Incarnation(new_incarnation()),
            model="model",
            split="split",
            runner="paged",
            profile="exact",
            device="CPU",
            host="here",
            pid=1,
            pipeline=pipeline,
        )
        ready = asyncio.Event()
        last = index == self.stages - 1
        runner = SlotShard(last=last, **shard) if "slots" in shard else ArithmeticShard(last=last, **shard)
        self.shards.append(runner)
        worker = StageWorker(
            self._connect(),
            SUBJECTS,
            identity,
            lambda: Loaded(runner, {"replay": replays}, numerics, lambda: runner.check()),  # noqa: PLW0108  tests replace it
            announce=lambda _: ready.set(),
            terms=terms,
            listen=0.0,
            heartbeat=self._heartbeat,
        )
        worker.tracer = self.tracer
        self.services.append(worker)
        task = self.workers[index] = self._start(worker.run(stop or asyncio.Event()))
        await ready.wait()
        return task

    async def start_decoder(self, stop: asyncio.Event | None = None, **changes: Any) -> asyncio.Task[None]:
        """A decoder; it may still wait for something, `serving` tells."""
        settings = config(**(self._settings | changes))
        seen = manifest(self.stages, **self.manifest)
        admission = Admission(seen, self.tokenizer, settings.default_max_tokens, self.sources, compiler=self.compiler)
        service = DecoderService(
            self._connect(),
            SUBJECTS,
            admission,
            settings,
            announce=lambda _: self.serving.set(),
            drafter=self.drafter(),
            heartbeat=self._heartbeat,
            tracer=self.tracer,
        )
        self.decoders.append(service)
        return self._start(service.run(stop or asyncio.Event()))

    def _connect(self) -> MemoryTransport:
        self.links.append(MemoryTransport(self.broker))
        return self.links[-1]

    def outage(self, *, over: bool = False) -> None:
        """Nobody reaches the broker, until the outage is over."""
        for link in (self.transport, *self.links):
            link.connected = over

    def _start(self, run: Any) -> asyncio.Task[None]:
        async def until_killed() -> None:
            try:
                with suppress(asyncio.CancelledError):
                    await run
            except* DeviceError:  # it ends as a process does
                pass

        task = self._tasks.create_task(until_killed())
        self.running.append(task)
        return task

    async def kill(self, task: asyncio.Task[None]) -> None:
        """As kill -9: no goodbye."""
        task.cancel()
        await asyncio.wait({task})


@asynccontextmanager
async def pipeline(
    stages: int = 2, *, whole: bool = True, heartbeat: float = HEARTBEAT, **settings: Any
) -> AsyncGenerator[Pipeline]:
    """A pipeline of arithmetic shards; `whole`: with its workers and decoder started."""
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        here = Pipeline(MemoryBroker(clock=Clock()), tasks, stages, heartbeat, **settings)
        if whole:
            await here.start()
        yield here
        for task in here.running:
            task.cancel()
