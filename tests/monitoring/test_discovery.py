"""`nats micro` sees stages and decoders: the requests it sends, and what it expects back."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from engine.contract.figures import Answers, Histogram
from engine.local.broker import embedded_broker
from engine.monitoring.discovery import Discovery, answer, decoder_card, stage_card
from engine.transport.nats import NatsTransport, connect
from engine.transport.subjects import Subjects
from tests.decoder.test_fleet import heartbeat
from tests.monitoring.test_depth import decoder_heartbeat

SUBJECTS = Subjects("default", "m")
STAGE = stage_card(SUBJECTS, heartbeat(1, 77, steps=4, busy_seconds=0.5, refused=2))
STARTED = datetime(2026, 1, 2, tzinfo=UTC)


def replied(subject: str) -> dict[str, Any] | None:
    data = answer(subject, STAGE, STARTED)
    return orjson.loads(data) if data else None


@pytest.mark.parametrize("named", ["", ".shardline-stage", ".shardline-stage.77"])
def test_a_ping_to_all_to_its_kind_and_to_itself_is_answered(named: str) -> None:
    found = replied(f"$SRV.PING{named}")
    assert found is not None
    assert (found["type"], found["name"], found["id"]) == ("io.nats.micro.v1.ping_response", "shardline-stage", "77")
    assert found["metadata"]["stage"] == "1"


@pytest.mark.parametrize(
    "subject", ["$SRV.PING.other", "$SRV.PING.shardline-stage.78", "$SRV.SCHEMA", "$SRV.PING.a.b.c", "$SRV"]
)
def test_what_is_for_others_is_not_answered(subject: str) -> None:
    assert replied(subject) is None


def test_info_names_the_subjects_that_are_served() -> None:
    found = replied("$SRV.INFO")
    assert found is not None
    assert [one["subject"] for one in found["endpoints"]] == [SUBJECTS.stage(1, 77), SUBJECTS.stage_control(1, 77)]


def test_stats_tell_requests_errors_and_time() -> None:
    found = replied("$SRV.STATS.shardline-stage")
    assert found is not None
    steps = found["endpoints"][0]
    assert (steps["num_requests"], steps["num_errors"]) == (4, 2)
    assert (steps["processing_time"], steps["average_processing_time"]) == (500_000_000, 125_000_000)
    assert found["started"] == "2026-01-02T00:00:00+00:00"


def test_a_decoder_counts_requests_of_every_outcome() -> None:
    took = Histogram(bounds=(1.0,), counts=(2, 0), total=0.75)
    answers = Answers(outcomes={"stop": 2, "error": 1}, request_seconds=took)
    [generate, _] = decoder_card(SUBJECTS, decoder_heartbeat(answers=answers)).endpoints
    assert (generate.requests, generate.errors, generate.seconds) == (3, 1, 0.75)


@pytest.mark.broker
def test_raw_requests_find_who_runs() -> None:
    async def main() -> None:
        async with asyncio.timeout(30), embedded_broker() as url, connect(url, name="one") as one:
            stop = asyncio.Event()
            cards = (STAGE, decoder_card(SUBJECTS, decoder_heartbeat()))
            running = [asyncio.create_task(Discovery(one, lambda card=card: card).run(stop)) for card in cards]
            async with connect(url, name="two") as two:
                assert await everybody(two, of=2) == {"shardline-stage", "shardline-decoder"}
                info = await two.request("$SRV.INFO.shardline-decoder", b"", timeout=5)
                assert orjson.loads(info.data)["endpoints"][0]["subject"] == SUBJECTS.generate
                stats = await two.request("$SRV.STATS.shardline-stage.77", b"", timeout=5)
                assert orjson.loads(stats.data)["endpoints"][0]["num_requests"] == 4
            stop.set()
            await asyncio.gather(*running)

    asyncio.run(main())


async def everybody(transport: NatsTransport, *, of: int) -> set[str]:
    """Who answers a ping; asked again until they are so many, because they may not listen yet."""
    names: set[str] = set()
    async with transport.subscribe("answers") as inbox:
        while len(names) < of:
            await transport.publish("$SRV.PING", b"", reply="answers")
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    while len(names) < of:
                        if data := (await inbox.get()).data:
                            names.add(orjson.loads(data)["name"])
    return names
