"""`shardline chat`: a conversation in the terminal. Ctrl-C stops an answer, not the conversation."""

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from engine.client.api import Shardline
from engine.contract.errors import ErrorCode, ShardlineError
from engine.contract.prompt import FinalEvent
from engine.service import loop_factory

T = TypeVar("T")
HELP: Final = "/reset begins anew, /exit or Ctrl-D ends, Ctrl-C stops an answer"
POLL_SECONDS: Final = 0.2  # Windows notices Ctrl-C only between two waits


class Talk:
    """The turns so far, and the next answer."""

    def __init__(
        self, pipeline: Shardline, system: str, fields: Mapping[str, Any], write: Callable[[str], None]
    ) -> None:
        self._pipeline, self._fields, self._write = pipeline, fields, write
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = list(self._system)
        self._answering: asyncio.Task[Any] | None = None

    def reset(self) -> None:
        """Forget every turn."""
        self.messages = list(self._system)

    def stop(self) -> None:
        """End the answer that is being written; what was written stays in the conversation."""
        if self._answering is not None:
            self._answering.cancel()

    async def ask(self, question: str) -> FinalEvent | None:
        """Stream the answer to the next turn; None when it was stopped. Raises PromptError, BrokerError."""
        self.messages.append({"role": "user", "content": question})
        self._answering, text, final = asyncio.current_task(), "", None
        try:
            async for event in self._pipeline.stream(messages=self.messages, **self._fields):
                if isinstance(event, FinalEvent):
                    final = event
                else:
                    text += event.text
                    self._write(event.text)
        except asyncio.CancelledError:
            return None
        except ShardlineError:
            text = ""
            self.messages.pop()
            raise
        finally:
            self._answering = None
            if text:
                self.messages.append({"role": "assistant", "content": text})
        return final


@contextmanager
def in_background() -> Generator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own: the terminal belongs to the main thread, and the link must stay alive."""
    loop = (loop_factory() or asyncio.new_event_loop)()
    thread = threading.Thread(target=loop.run_forever, name="chat", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def wait_for(future: "Future[T]") -> T:
    """Its result; a Ctrl-C meanwhile raises KeyboardInterrupt here. Raises what it raises."""
    while True:
        try:
            return future.result(POLL_SECONDS)
        except TimeoutError:
            if future.done():
                raise


def chat(make: Callable[[], Shardline], system: str, fields: Mapping[str, Any]) -> bool:
    """Talk until /exit or the end of the input; whether every answer succeeded. Raises ShardlineError at the start."""
    with in_background() as loop:

        def run(work: Coroutine[Any, Any, T]) -> "Future[T]":
            return asyncio.run_coroutine_threadsafe(work, loop)

        ready: Future[Shardline] = Future()
        stop = asyncio.Event()
        holding = run(_hold(make, ready, stop))
        try:
            pipeline = wait_for(ready)
            return _converse(Talk(pipeline, system, fields, _say), pipeline.model, run, loop)
        finally:
            loop.call_soon_threadsafe(stop.set)
            with suppress(ShardlineError, KeyboardInterrupt):
                wait_for(holding)


async def _hold(make: Callable[[], Shardline], ready: "Future[Shardline]", stop: asyncio.Event) -> None:
    """Keep a connection open until `stop`; `ready` gets it, or what went wrong."""
    try:
        async with make() as pipeline:
            ready.set_result(pipeline)
            await stop.wait()
    except ShardlineError as error:
        if ready.done():
            raise
        ready.set_exception(error)


def _converse(talk: Talk, model: str, run: Callable[[Any], "Future[Any]"], loop: asyncio.AbstractEventLoop) -> bool:
    well = True
    if sys.stdin.isatty():
        _say(f"{model}. {HELP}.\n")
    while (line := _read()) not in ("/exit", "/quit"):
        match line:
            case "":
                continue
            case "/reset":
                talk.reset()
                _say("(a new conversation)\n")
            case _ if line.startswith("/"):
                _say(f"({HELP})\n")
            case _:
                well &= _turn(talk, line, run, loop)
    return well


def _read() -> str:
    """What comes next, "/exit" at the end of the input."""
    try:
        return input("\n> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return "/exit"
    except KeyboardInterrupt:
        return "/help"


def _turn(talk: Talk, line: str, run: Callable[[Any], "Future[Any]"], loop: asyncio.AbstractEventLoop) -> bool:
    """One question and its answer; whether that went well."""
    answer = run(talk.ask(line))
    try:
        while True:
            try:
                final = wait_for(answer)
            except KeyboardInterrupt:
                loop.call_soon_threadsafe(talk.stop)
            else:
                _say("\n" if final else "\n(stopped)\n")
                return True
    except ShardlineError as error:
        hint = " (/reset begins anew)" if getattr(error, "code", "") == ErrorCode.PROMPT_TOO_LONG else ""
        print(f"error: {error}{hint}", file=sys.stderr, flush=True)  # noqa: T201
        return False


def _say(text: str) -> None:
    print(text, end="", flush=True)  # noqa: T201
