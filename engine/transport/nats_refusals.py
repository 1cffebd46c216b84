"""What the broker does not let us do. Its client library only tells a callback; the message itself is gone."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final, Literal, TypeVar

from engine.contract.errors import BrokerError

Kind = Literal["publish", "subscription"]
_VIOLATION: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE)
_DOMAIN: Final = re.compile(r"^\$js\.[^.]+\.api\.")  # what a broker of another site makes of JetStream's interface
_FILES: Final = re.compile(r"_files\b|\.files\b")
_OURS: Final = ("shardline.", "$js.", "$kv.", "$o.")  # lower case, as the client library tells it
log = logging.getLogger("shardline.transport")
T = TypeVar("T")


def _as_asked(subject: str) -> str:
    """The subject as we have it, lower case."""
    return _DOMAIN.sub("$js.api.", subject).replace("$js.api.$kv.", "$kv.")


class RefusedError(BrokerError):
    """The broker's permissions do not let us use a subject."""


class Refusals:
    """Hands each refusal to whoever waits for it. One that nobody waits for is fatal, unless somebody else chose
    the subject: a client who asks for its answer on a subject that is not ours to use must not end a decoder.
    """

    def __init__(self) -> None:
        self.who = "we"  # in messages: the file that says who we are
        self.fatal: Callable[[BrokerError], None] = lambda _: None
        self._waiting: dict[tuple[str, str], list[asyncio.Future[None]]] = {}
        self._warned: set[str] = set()

    def note(self, text: str) -> bool:
        """Take in what the client library reports; False when it is about something else."""
        found = _VIOLATION.search(text)
        if found is None:
            return False
        kind, subject = found[1].lower(), _as_asked(found[2].lower())
        waiting = self._waiting.get((kind, subject), [])
        for future in waiting:
            if not future.done():
                future.set_exception(self._error(kind, subject))
        if not waiting and (kind == "subscription" or subject.startswith(_OURS)):
            self.fatal(self._error(kind, subject))
        elif (
            not waiting and subject not in self._warned and len(self._warned) < 100
        ):  # no limit would be theirs to fill
            self._warned.add(subject)
            log.warning("%s", self._error(kind, subject))
        return True

    def _error(self, kind: str, subject: str) -> RefusedError:
        action = "publish on" if kind == "publish" else "subscribe to"
        files = "files of models are pushed with the key of export alone. " if _FILES.search(subject) else ""
        return RefusedError(
            f"the broker does not let {self.who} {action} {subject}: is it the key of this role (--credentials)? "
            f"{files}Were this deployment and model named to 'shardline broker-config' (--shards or --model; a draft's "
            "slug too)? It writes permissions anew"
        )

    @contextmanager
    def listening(self, kind: Kind, subject: str) -> Generator[asyncio.Future[None]]:
        """A future that fails with RefusedError if the broker refuses this meanwhile."""
        key = (kind, subject.lower())
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(told)
        try:
            yield told
        finally:
            self._waiting[key].remove(told)
            if not self._waiting[key]:
                del self._waiting[key]
            if told.done():
                with suppress(RefusedError):
                    told.result()  # taken note of, whoever waited

    async def unless_refused(self, subject: str, action: Awaitable[T]) -> T:
        """The result of something that publishes on `subject`. Raises RefusedError as soon as that is known."""
        with self.listening("publish", subject) as told:
            working = asyncio.ensure_future(action)
            try:
                await asyncio.wait({working, told}, return_when=asyncio.FIRST_COMPLETED)
                if not working.done():
                    told.result()
                return await working
            finally:
                if not working.done():
                    working.cancel()
