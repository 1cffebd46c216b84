# pyright: basic
"""The pipeline's lease, on a JetStream key-value bucket."""

from typing import Final

from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NoKeysError
from nats.js.kv import KeyValue

from engine.contract.errors import BrokerError, LeaseLostError
from engine.transport.nats_client import RepairedClient, whole
from engine.transport.nats_jetstream import ANSWER_SECONDS, API_ERRORS, administer, in_copies, optional

NOBODY: Final = (KeyNotFoundError, NoKeysError)


async def open_lease(client: RepairedClient, url: str, *, bucket: str, key: str) -> "NatsLease":
    """The lease, its bucket made if missing. Raises BrokerError."""
    js = client.jetstream(timeout=ANSWER_SECONDS)
    store = await administer(url, optional(js.key_value, bucket))
    if store is None:
        config = KeyValueConfig(bucket=bucket, history=1, storage=StorageType.FILE)
        making = in_copies(js, bucket, lambda copies: js.create_key_value(config.evolve(replicas=copies)))
        await administer(url, making)
        store = await administer(url, js.key_value(bucket))
    return NatsLease(store, key)


class NatsLease:
    """See Lease.

    A key that has expired comes back as an entry without a value, and `create` then refuses to work until that marker
    is gone: both are handled here. So an empty value is no lease.
    """

    def __init__(self, store: KeyValue, key: str) -> None:
        self._store, self._key = store, key

    async def read(self) -> tuple[int, bytes] | None:
        """See Lease."""
        entry = await self._entry()
        return entry if entry and entry[1] else None

    async def write(self, value: bytes, *, after: int) -> int:
        """See Lease."""
        try:
            if after:
                return await whole(self._store.update(self._key, value, last=after))
            marker = await self._entry()
            if marker and not marker[1]:
                return await whole(self._store.update(self._key, value, last=marker[0]))
            return await whole(self._store.create(self._key, value))
        except KeyWrongLastSequenceError as error:
            raise LeaseLostError("another decoder has taken the pipeline's lease") from error
        except API_ERRORS as error:
            raise BrokerError(f"cannot write the lease: {error}") from error

    async def _entry(self) -> tuple[int, bytes] | None:
        try:
            entry = await whole(self._store.get(self._key))
        except NOBODY:
            return None
        except API_ERRORS as error:
            raise BrokerError(f"cannot read the lease: {error}") from error
        return entry.revision or 0, entry.value or b""
