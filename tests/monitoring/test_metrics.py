"""What Prometheus gets to read, from heartbeats and from a pipeline at work."""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import orjson
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from engine.contract.control import DecoderHeartbeat, StageHeartbeat, from_json, to_json
from engine.contract.figures import Answers, Histogram
from engine.gateway import counting
from engine.monitoring.depth import Depths
from engine.monitoring.exposition import registry_of
from engine.monitoring.health import bubble_shares
from engine.monitoring.histogram import Buckets
from engine.monitoring.metrics import (
    CONNECTED,
    DECODER,
    PIPELINE,
    QUEUE,
    STAGE,
    STAGE_INFO,
    Metric,
    Sample,
    decoder_samples,
    stage_samples,
)
from engine.monitoring.watch import Watch
from engine.monitoring.window import Activity
from engine.transport.memory import MemoryTransport
from tests.decoder.local_pipeline import SUBJECTS, pipeline
from tests.decoder.test_fleet import heartbeat
from tests.monitoring.test_depth import decoder_heartbeat

METRICS: tuple[Metric, ...] = (
    *(metric for rows in (STAGE, DECODER, PIPELINE, QUEUE) for metric, _ in rows),
    *(STAGE_INFO, CONNECTED, counting.REQUESTS, counting.OPEN, counting.PAGES),
)
LABELS = {"pipeline", "pipeline_name", "process", "stage", "state", "outcome", "code", "choice", "le"}
Read = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(samples: Iterable[Sample]) -> Read:
    text = generate_latest(registry_of(samples)).decode()
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def value(read: Read, name: str, **labels: str) -> float:
    [found] = [v for (n, having), v in read.items() if n == name and labels.items() <= set(having)]
    return found


def test_names_keep_to_prometheus_conventions_and_are_there_once() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"shardline_[a-z][a-z0-9_]*", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert not re.search(r"_(ms|mb|percent|count|sum|bucket)(_total)?$", metric.name)
        assert metric.help.endswith(".")


def test_no_label_grows_with_the_number_of_requests() -> None:
    answers = Answers(outcomes={"stop": 3}, errors={"invalid_prompt": 1, "of_a_newer_version": 2, "another": 1})
    read = scraped(decoder_samples("default", decoder_heartbeat(answers=answers)))
    assert {name for _, labels in read for name, _ in labels} <= LABELS
    assert value(read, "shardline_request_errors_total", code="other") == 3
    assert value(read, "shardline_request_errors_total", code="invalid_prompt") == 1


def test_a_heartbeat_of_an_older_version_can_be_scraped() -> None:
    old: dict[str, Any] = {
        name: having
        for name, having in orjson.loads(to_json(heartbeat(0))).items()
        if name not in ("busy_seconds", "step_seconds", "refusals", "link")
    }
    beat = from_json(StageHeartbeat, orjson.dumps(old))
    read = scraped(stage_samples("default", beat))
    assert value(read, "shardline_stage_busy_seconds_total", stage="0", pipeline="default/m", process="pc:1") == 0
    assert not [name for name, _ in read if name.startswith("shardline_stage_step_seconds")]


def test_heartbeats_with_figures_survive_the_wire() -> None:
    histogram = Histogram(bounds=(0.1, 1.0), counts=(1, 2, 3), total=9.5)
    beat = heartbeat(0, busy_seconds=2.5, step_seconds=histogram, refusals={"step_gap": 1})
    assert from_json(StageHeartbeat, to_json(beat)) == beat
    decoder = decoder_heartbeat(answers=Answers(outcomes={"stop": 1}, token_seconds=histogram), active_seconds=3.0)
    assert from_json(DecoderHeartbeat, to_json(decoder)) == decoder


def test_a_histogram_is_cumulative_and_ends_with_all() -> None:
    buckets = Buckets((0.1, 1.0))
    buckets.observe(0.1)
    buckets.observe(0.5, times=2)
    buckets.observe(3.0)
    read = scraped(stage_samples("default", heartbeat(0, step_seconds=buckets.histogram())))
    counted = {bound: value(read, "shardline_stage_step_seconds_bucket", le=bound) for bound in ("0.1", "1.0", "+Inf")}
    assert counted == {"0.1": 1, "1.0": 3, "+Inf": 4}
    assert value(read, "shardline_stage_step_seconds_sum") == 4.1
    assert value(read, "shardline_stage_step_seconds_count") == 4


def test_the_time_with_work_ends_with_the_work() -> None:
    activity = Activity()
    for now, active in ((1.0, False), (2.0, True), (3.0, True), (5.0, False), (9.0, False), (10.0, True), (10.5, True)):
        activity.observe(now, active=active)
    assert activity.seconds == 3.5


def test_a_bubble_is_time_with_work_that_a_stage_did_not_compute() -> None:
    def at(busy: float, active: float, incarnation: int = 1) -> Depths:
        workers = (heartbeat(0, incarnation, busy_seconds=busy), heartbeat(1, 2, busy_seconds=2 * busy))
        return Depths(workers, (), decoder_heartbeat(active_seconds=active), None)

    assert bubble_shares(at(1, 10), at(5, 20)) == [0.6, 0.19999999999999996]
    assert bubble_shares(at(1, 10), at(5, 10)) == [None, None]
    assert bubble_shares(at(1, 10), at(5, 20, incarnation=9))[0] is None
    assert bubble_shares(at(1, 10), replace(at(5, 20), decoder=None)) == [None, None]


def up_to_date(watch: Watch, decoder: DecoderHeartbeat) -> bool:
    """Whether the decoder's figures were heard, and every stage's after the same steps."""
    depths = watch.heard("model") if watch.names else None
    if depths is None or depths.decoder is None or depths.decoder.answers != decoder.answers:
        return False
    return [worker.steps for worker in depths.stages if worker] == [decoder.steps, decoder.steps]


def test_answers_are_counted_by_outcome_with_their_tokens_and_times() -> None:
    async def scenario() -> Read:
        async with pipeline(2) as here:
            watch = Watch(MemoryTransport(here.broker), SUBJECTS.deployment)
            listening = asyncio.create_task(watch.listen())
            await asyncio.sleep(0)
            await here.client.complete(prompt="Hello", max_tokens=7)
            await here.client.complete(prompt="Hello again", max_tokens=5)
            async for _ in here.client.generate(prompt="x", unknown=1):
                pass
            [decoder] = here.decoders
            while not up_to_date(watch, decoder.heartbeat()):
                watch.news.clear()
                await watch.news.wait()
            listening.cancel()
            return scraped(await watch.samples())

    read = asyncio.run(scenario())
    assert value(read, "shardline_requests_total", outcome="length") == 2
    assert value(read, "shardline_requests_total", outcome="error") == 1
    assert value(read, "shardline_requests_total", outcome="cancelled") == 0
    assert value(read, "shardline_request_errors_total", code="unknown_field") == 1
    assert value(read, "shardline_generated_tokens_total") == 12
    assert value(read, "shardline_prompt_tokens_total") == len("HelloHello again")
    assert value(read, "shardline_time_to_first_token_seconds_count") == 2
    assert value(read, "shardline_time_between_tokens_seconds_count") == 10
    assert value(read, "shardline_request_seconds_count") == 2
    assert value(read, "shardline_pipeline_up", pipeline="test/model") == 1
    assert value(read, "shardline_dead_letters") == 1
    steps = value(read, "shardline_steps_total")
    for stage in "01":
        assert value(read, "shardline_stage_steps_total", stage=stage) == steps
        assert value(read, "shardline_stage_step_seconds_count", stage=stage) == steps
        busy = value(read, "shardline_stage_busy_seconds_total", stage=stage)
        assert 0 < busy <= value(read, "shardline_active_seconds_total")
        assert value(read, "shardline_stage_sent_bytes_total", stage=stage) > 0
