# pyright: basic
"""The file store, on a JetStream stream with one message per name.

nats-py's own object store reads in quadratic time, cannot resume and leaks a task per read (its issues 703 and 596).
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

import orjson
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from engine.contract.errors import BrokerError
from engine.transport.base import Kept
from engine.transport.nats_client import RepairedClient
from engine.transport.nats_jetstream import (
    ANSWER_SECONDS,
    NO_ROOM,
    STREAM_FULL,
    administer,
    ensure_stream,
    optional,
)

CHUNK_SECONDS: Final = 30.0  # for one chunk to go and its answer to come, several others before it
DIGEST: Final = "Shardline-Sha256"
T = TypeVar("T")


async def open_files(
    client: RepairedClient, url: str, *, stream: str, subject: str, create: bool
) -> "NatsFileStore | None":
    """The file store, its stream made if missing and wanted. Raises BrokerError."""
    js = client.jetstream(timeout=ANSWER_SECONDS)
    if create:
        config = StreamConfig(
            name=stream,
            subjects=[f"{subject}.>"],
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.NEW,  # a full broker says so instead of forgetting parts of other models
            storage=StorageType.FILE,
            max_msgs_per_subject=1,
            allow_direct=True,
        )
        await ensure_stream(js, url, config)
    elif await administer(url, optional(js.stream_info, stream)) is None:
        return None
    return NatsFileStore(client, stream, subject)


async def streams_of(client: RepairedClient, url: str, subject: str) -> list[str]:
    """See Transport. The broker lists 1024 at most."""
    query = orjson.dumps({"subject": subject})
    answer = await administer(url, client.request("$JS.API.STREAM.NAMES", query, timeout=ANSWER_SECONDS))
    fields: dict[str, Any] = orjson.loads(answer.data)
    if error := fields.get("error"):
        raise BrokerError(f"JetStream at {url}: {error.get('description')}")
    return fields.get("streams") or []


class NatsFileStore:
    """See FileStore."""

    def __init__(self, client: RepairedClient, stream: str, subject: str) -> None:
        self._client, self._stream, self._subject = client, stream, subject
        self._js: JetStreamContext = client.jetstream(timeout=CHUNK_SECONDS)

    async def put(self, name: str, data: bytes, *, digest: str) -> None:
        """See FileStore."""
        await self._ask(self._js.publish(f"{self._subject}.{name}", data, headers={DIGEST: digest}))

    async def get(self, name: str) -> Kept | None:
        """See FileStore. A read from the leader for a pattern, else from whoever has it."""
        direct = not name.endswith("*")
        with suppress(NotFoundError):
            found = await self._ask(self._js.get_msg(self._stream, subject=f"{self._subject}.{name}", direct=direct))
            return Kept(found.data or b"", (found.headers or {}).get(DIGEST, ""))
        return None

    async def names(self, group: str) -> set[str]:
        """See FileStore."""
        found = await self._ask(self._js.stream_info(self._stream, subjects_filter=f"{self._subject}.{group}.*"))
        return {subject.rpartition(".")[2] for subject in found.state.subjects or {}}

    async def remove(self, names: str) -> None:
        """See FileStore."""
        await self._ask(self._js.purge_stream(self._stream, subject=f"{self._subject}.{names}"))

    async def _ask(self, call: Coroutine[Any, Any, T]) -> T:
        """What a call brings, unless the link is lost meanwhile: then its answer will not come any more."""
        asking, lost = asyncio.ensure_future(call), asyncio.ensure_future(self._client.offline.wait())
        try:
            await asyncio.wait({asking, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise ConnectionError("lost the broker")
            return asking.result()
        except NotFoundError:
            raise
        except (NatsError, OSError) as error:
            raise _as_ours(error) from error
        finally:
            for task in (asking, lost):
                task.cancel()
            await asyncio.wait({asking, lost})


def _as_ours(error: Exception) -> Exception:
    """BrokerError for what the broker refuses, ConnectionError for what may be tried again."""
    match error:
        case APIError(err_code=code) if code in (STREAM_FULL, *NO_ROOM):
            return BrokerError(
                f"the broker has no room for these files ({error.description}): raise max_file of its jetstream, "
                "or remove models with 'shard-export remove'"
            )
        case NoStreamResponseError() | ServiceUnavailableError():
            return ConnectionError("the broker does not have the stream at hand")  # it has just started
        case APIError():
            return BrokerError(f"the broker does not take or give these files: {error.description}")
        case _:
            return ConnectionError(str(error) or "no answer from the broker")
