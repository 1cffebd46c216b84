# pyright: basic
"""The life of a connection: waiting for the broker, what the client reports, the end."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from nats.errors import Error as NatsError

from engine.contract.errors import BrokerError, UsageError
from engine.transport.address import connect_options, shown
from engine.transport.nats_client import RepairedClient, reconnect_pause
from engine.transport.nats_trouble import Trouble, who

PATIENCE_SECONDS: Final = 1.0  # before "waiting for the broker" is worth a line
ATTEMPT_SECONDS: Final = 2.0  # for a broker to take a connection and to greet
CLOSE_SECONDS: Final = 2.0  # for what was published last
log = logging.getLogger("shardline.transport")


async def open_client(
    client: RepairedClient, url: str, *, name: str, wait: float | None, closed: Callable[[], None]
) -> None:
    """Connect, for as long as it takes or `wait` seconds. `closed` is called when the broker ends it for good.

    Raises BrokerError, UsageError.
    """
    _check_url(url)
    identity = connect_options(url)
    client.insists_on_tls = "tls" in identity
    client.refusals.who = who(url)
    refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    options = _options(client, url, name, refused, closed) | identity
    attempt = asyncio.create_task(client.connect(url.split(","), **options))
    try:
        done, _ = await asyncio.wait({attempt, refused}, timeout=PATIENCE_SECONDS if wait is None else wait,
                                     return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        if not done and wait is None:
            log.info("waiting for the broker at %s", shown(url))
            done, _ = await asyncio.wait({attempt, refused}, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise BrokerError(f"no broker at {shown(url)}: start nats-server, or name another one with --nats")
        if refused.done():
            raise BrokerError(refused.result())
        attempt.result()
        client.online.set()
    except (NatsError, OSError, ValueError) as error:
        raise BrokerError(f"cannot use the broker at {shown(url)}: {error}") from error
    finally:
        refused.cancel()
        if not client.online.is_set():
            attempt.cancel()
            await asyncio.wait({attempt})
            client.abort()


def _check_url(url: str) -> None:
    for part in url.split(","):
        try:
            parts = urlsplit(part if "://" in part else f"nats://{part}")
            good = bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise UsageError(f"{shown(url)!r} is not the address of a broker; one looks like nats://127.0.0.1:4222")


def _options(
    client: RepairedClient, url: str, name: str, refused: asyncio.Future[str], closed: Callable[[], None]
) -> dict[str, Any]:
    """How the client is set up. Its callbacks must not raise: it would stop reconnecting (#204)."""
    trouble = Trouble(url, refused, client.refusals.fatal)

    async def on_error(error: Exception) -> None:
        log.debug("broker client: %s", error)
        if not client.refusals.note(str(error)):
            trouble.hear(error)

    async def on_disconnect() -> None:
        if not client.is_closed:
            log.warning("lost the broker at %s, reconnecting", shown(url))

    async def on_reconnect() -> None:
        trouble.over()
        log.info("reconnected to the broker at %s", shown(url))

    async def on_close() -> None:
        closed()

    return {
        "name": f"shardline-{name}",
        "error_cb": on_error,
        "disconnected_cb": on_disconnect,
        "reconnected_cb": on_reconnect,
        "closed_cb": on_close,
        "connect_timeout": ATTEMPT_SECONDS,
        "reconnect_time_wait": reconnect_pause(),
        "max_reconnect_attempts": -1,
        "ping_interval": 5,
        "max_outstanding_pings": 3,
    }


async def close_client(client: RepairedClient) -> None:
    """What was published goes out, if the broker still takes it; then the link ends."""
    with suppress(NatsError, OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.drained()
    client.forget_pending()  # closing would wait for it without end
    closing = asyncio.create_task(client.close())
    _, late = await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
    if late:  # unsent bytes on a half-open link
        client.abort()
        await asyncio.wait({closing})
