# pyright: basic
"""What a broker says of itself, and how far away it is in time; for `shardline doctor`."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import orjson
from nats.aio.msg import Msg

from engine.contract.errors import BrokerError
from engine.contract.facts import Broker
from engine.transport.nats_client import RepairedClient
from engine.transport.nats_jetstream import ANSWER_SECONDS, administer

TRIPS: Final = 20
TRACE_SECONDS: Final = 1.0
TRACE_DEST: Final = "Nats-Trace-Dest"  # to whom the broker reports what it does with a message (since 2.11)


async def look_at_broker(client: RepairedClient, url: str, barrier: Callable[[], Awaitable[None]]) -> Broker:
    """What there is to know of the broker behind a connection. Raises BrokerError."""
    info: dict[str, Any] = client._server_info
    jetstream = bool(info.get("jetstream"))
    account = None
    if jetstream:
        with suppress(BrokerError):  # not allowed to ask
            account = await administer(url, client.jetstream(timeout=ANSWER_SECONDS).account_info())
    trips: list[float] = []
    for _ in range(TRIPS):
        began = time.perf_counter()
        await barrier()
        trips.append((time.perf_counter() - began) * 1e3)
    return Broker(
        url=url,
        version=str(info.get("version", "")),
        jetstream=jetstream,
        max_payload=client.max_payload,
        rtt_ms=statistics.median(trips),
        clock_offset=await _clock_offset(client),
        tls=bool(info.get("tls_required")),
        auth=bool(info.get("auth_required")),
        streams=account.streams if account else 0,
        stored=account.storage if account else 0,
    )


async def _clock_offset(client: RepairedClient) -> float | None:
    """The time in the broker's report of a message, less the middle of the way there and back."""
    inbox = client.new_inbox()
    reported: asyncio.Future[tuple[float, bytes]] = asyncio.get_running_loop().create_future()

    async def arrived(message: Msg) -> None:
        if not reported.done():
            reported.set_result((time.time(), message.data))

    subscription = await client.subscribe(inbox, cb=arrived)
    try:
        began = time.time()
        await client.publish(f"{inbox}.time", headers={TRACE_DEST: inbox, "Nats-Trace-Only": "true"})
        async with asyncio.timeout(TRACE_SECONDS):
            ended, data = await reported
        return _time_in(data) - (began + ended) / 2
    except (TimeoutError, LookupError, ValueError):
        return None
    finally:
        await subscription.unsubscribe()


def _time_in(report: bytes) -> float:
    """Seconds since 1970 of the first event, which comes with nanoseconds. Raises LookupError, ValueError."""
    text, _, _ = str(orjson.loads(report)["events"][0]["ts"]).partition("Z")
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
