import asyncio
from io import StringIO
from typing import Any

from rich.console import Console

from engine.contract.control import DecoderHeartbeat, PrefixCache, Speculation, from_json, to_json
from engine.monitoring.depth import Collector, Depths
from engine.monitoring.table import render
from engine.monitoring.window import Rate
from engine.transport.base import Incoming
from engine.transport.memory import MemoryBroker, MemoryTransport
from engine.transport.subjects import Subjects
from tests.decoder.test_fleet import heartbeat

SUBJECTS = Subjects("default", "m")


def collected(*beats: tuple[int, int, int], now: float = 0.0) -> Depths:
    """Depths after heartbeats (stage, incarnation, epoch)."""
    collector = Collector(MemoryTransport(MemoryBroker()), SUBJECTS)
    for stage, incarnation, epoch in beats:
        data = to_json(heartbeat(stage, incarnation, epoch=epoch))
        collector.observe(Incoming(SUBJECTS.stage_heartbeat(stage), data), 0.0)
    collector.observe(Incoming(SUBJECTS.stage_heartbeat(0), b"noise"), 0.0)
    return asyncio.run(collector.depths(now))


def test_a_stage_nobody_serves_is_shown_as_missing() -> None:
    depths = collected((1, 5, 3))
    assert depths.as_dict()["stages"][0] == {"stage": 0, "state": "missing"}
    assert depths.as_dict()["stages"][1]["incarnation"] == 5


def test_the_worker_of_the_newest_epoch_serves_and_the_other_is_a_spare() -> None:
    depths = collected((0, 5, 3), (0, 9, 0), (1, 6, 3))
    assert [worker.incarnation for worker in depths.stages if worker] == [5, 6]
    assert [worker.incarnation for worker in depths.spares] == [9]


def test_who_is_silent_is_gone() -> None:
    assert collected((0, 5, 3), now=60.0).stages == ()


def test_the_table_names_what_is_missing() -> None:
    out = StringIO()
    Console(file=out, width=120).print(render(collected((1, 5, 3))))
    assert "missing" in out.getvalue()
    assert "start decoder-run" in out.getvalue()


def test_the_table_says_how_often_beginnings_are_reused() -> None:
    beat = decoder_heartbeat(prefix_cache=PrefixCache(lookups=8, hits=6, saved_tokens=720, cached_blocks=12))
    assert from_json(DecoderHeartbeat, to_json(beat)) == beat
    collector = Collector(MemoryTransport(MemoryBroker()), SUBJECTS)
    collector.observe(Incoming(SUBJECTS.decoder_heartbeat("d"), to_json(beat)), 0.0)
    out = StringIO()
    Console(file=out, width=200).print(render(asyncio.run(collector.depths(0.0))))
    assert "75% of 8 prompts began like an earlier one, 720 tokens not computed again, 12 blocks kept" in out.getvalue()


def decoder_heartbeat(**changes: Any) -> DecoderHeartbeat:
    fields: dict[str, Any] = {
        "decoder": "d",
        "state": "serving",
        "waits_for": "",
        "epoch": 1,
        "model": "m",
        "host": "here",
        "pid": 1,
        "waiting": 0,
        "running": 0,
        "blocks": 16,
        "free_blocks": 16,
        "steps": 0,
        "steps_in_flight": 0,
        "replays": 0,
        "tokens": 0,
        "tokens_per_second": 0.0,
        "speculation": Speculation(),
    }
    return DecoderHeartbeat(**(fields | changes))


def test_of_two_pipelines_one_that_serves_is_shown() -> None:
    collector = Collector(MemoryTransport(MemoryBroker()), SUBJECTS)
    for name, waits_for in (("main", "stage 1 of 2"), ("two", "")):
        state = "waiting" if waits_for else "serving"
        beat = decoder_heartbeat(decoder=name, state=state, waits_for=waits_for, pipeline=name, epoch=9 - len(name))
        collector.observe(Incoming(SUBJECTS.decoder_heartbeat(name), to_json(beat)), 0.0)
    shown = collector.heard(0.0).decoder
    assert shown is not None and shown.decoder == "two"


def test_a_rate_forgets_what_is_old() -> None:
    rate = Rate(window=5.0)
    rate.add(10, now=0.0)
    rate.add(5, now=4.0)
    assert rate.per_second(4.0) == 3.0
    assert rate.per_second(7.0) == 1.0
    assert (rate.per_second(100.0), rate.total) == (0.0, 15)
