# pyright: basic
"""What the queue and the lease have in common: administrative calls whose errors name the cure."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from engine.contract.errors import BrokerError
from engine.transport.nats_client import whole
from engine.transport.nats_refusals import RefusedError

ANSWER_SECONDS: Final = 5.0
API_ERRORS: Final = (NatsError, OSError, asyncio.TimeoutError)
STREAM_FULL: Final = 10077  # "maximum messages exceeded", also of bytes
NO_ROOM: Final = (10023, 10028, 10047)  # insufficient resources, memory, storage
NOT_ENABLED: Final = (10035, 10039, 10076)  # no suitable peers, not for this account, not at all
COPIES: Final = 3  # of a stream, in a cluster of brokers
NO_PEERS: Final = 10005  # too few brokers for that many copies
TOO_FEW: Final = (NO_PEERS, 10074)  # or not clustered
log = logging.getLogger("shardline.transport")
T = TypeVar("T")


async def administer(url: str, action: Coroutine[Any, Any, T]) -> T:
    """Run an administrative call. Raises BrokerError; a broker without JetStream is named as such."""
    try:
        return await whole(action)
    except (NoStreamResponseError, ServiceUnavailableError, NoRespondersError) as error:
        raise _no_jetstream(url) from error
    except NatsTimeoutError as error:
        raise BrokerError(f"the broker at {url} does not answer about JetStream: is it still starting?") from error
    except APIError as error:
        if error.err_code in NOT_ENABLED:
            raise _no_jetstream(url) from error
        cure = ": give it more (max_file), a model needs 320 MiB" if error.err_code in NO_ROOM else ""
        raise BrokerError(f"JetStream at {url}: {error.description}{cure}") from error
    except API_ERRORS as error:
        raise BrokerError(f"JetStream at {url}: {error}") from error


def _no_jetstream(url: str) -> BrokerError:
    return BrokerError(
        f"the broker at {url} has no JetStream: start it with 'nats-server -js' or with deploy/nats/single.conf"
    )


def clustered(js: JetStreamContext) -> bool:
    """Whether the broker is one of several that know each other."""
    return bool(js._nc._server_info.get("cluster"))


async def in_copies(js: JetStreamContext, name: str, make: Callable[[int], Awaitable[object]]) -> None:
    """Make a stream in as many copies as the brokers have room for: three in a cluster, so that one may be lost."""
    if clustered(js):
        try:
            await make(COPIES)
        except APIError as error:
            if error.err_code not in TOO_FEW:
                raise
            level = logging.WARNING if error.err_code == NO_PEERS else logging.DEBUG
            log.log(level, "%s is kept once only, one broker holds it: %s", name, error.description)
        else:
            return
    await make(1)


async def ensure_stream(js: JetStreamContext, url: str, config: StreamConfig, *, make: bool = True) -> None:
    """Create a stream, or use one that is there if it does the same thing. Raises BrokerError saying what differs."""
    name = config.name or ""
    found = await administer(url, optional(js.stream_info, name))
    if found is None and not make:
        raise BrokerError(f"there is no stream {name} at {url}: start decoder-run")
    if found is None:
        try:
            making = in_copies(js, name, lambda copies: js.add_stream(config.evolve(num_replicas=copies)))
            await administer(url, making)
        except RefusedError as error:
            raise BrokerError(f"{name} is not there and not ours to make: start decoder-run first") from error
        return
    for what in ("subjects", "retention"):
        there, wanted = getattr(found.config, what), getattr(config, what)
        if there != wanted:
            raise BrokerError(
                f"stream {config.name} at {url} has {what} {_word(there)}, not {_word(wanted)}: "
                "it belongs to something else; use another --deployment or remove it"
            )


def _word(setting: object) -> str:
    return str(getattr(setting, "value", setting))


async def optional(call: Callable[[str], Awaitable[T]], name: str) -> T | None:
    """What a call finds under a name, None if there is nothing."""
    try:
        return await call(name)
    except NotFoundError:
        return None
