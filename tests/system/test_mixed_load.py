"""Many users of every kind at once on real processes, for minutes: nothing is lost, leaked or starved (D21, D22, D33).

A minute in `make test`; ten with `make soak` (SHARDLINE_SOAK_MINUTES). The order of wishes is seeded, what happens
between them is not: all that is asked of it are properties that must hold in any order.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.client.client import Client
from engine.contract.errors import ErrorCode
from engine.contract.prompt import Choice, FinalEvent
from engine.monitoring.depth import collect_once
from engine.transport.base import Transport
from engine.transport.nats import NatsTransport, connect
from engine.transport.subjects import Subjects
from tests.conftest import Shards
from tests.system.crowd import Asked, Crowd
from tests.system.running import Running, running
from tests.system.watching import Ends, Footprints, Waited
from tests.system.wishes import MOST_TOKENS, catalogue, wishes

pytestmark = [pytest.mark.model, pytest.mark.broker]
MINUTES = float(os.environ.get("SHARDLINE_SOAK_MINUTES", "1"))
USERS = 14
STAGES = ("--kv-memory", "32MiB")  # about 1,400 tokens: less than the running sequences want
DECODER = ("--max-running", "10", "--max-waiting", "10")
MOST_OVERTAKING = 20  # of requests of the same priority: as many as the decoder holds at once
EARLY, LATE = (0.5, 0.7), (0.8, 1.0)  # shares of the time: of ten minutes the sixth and seventh, the ninth and tenth
GROWTH = 1.05 if MINUTES >= 5 else 1.25  # of resident memory between them; caches fill for five minutes
REFUSALS = {ErrorCode.OVERLOADED, ErrorCode.DEADLINE_PASSED}
Calm = list[tuple[Choice, ...]]


def choices_of(final: FinalEvent) -> tuple[Choice, ...]:
    return final.choices or (Choice(text=final.text, ids=final.ids, finish_reason=final.finish_reason),)


async def calm_answers(client: Client) -> Calm:
    """Of the catalogue, one after the other with nobody beside."""
    return [choices_of(await client.complete(**fields, max_tokens=MOST_TOKENS, draft="none")) for fields in catalogue()]


@dataclass(frozen=True, slots=True)
class Soaked:
    """All that was seen."""

    calm: Calm
    asked: dict[str, Asked]
    ends: Ends
    footprints: Footprints
    missed: int  # events that the one who misses nothing has missed
    left: tuple[int, int, int]  # blocks in use, requests waiting, requests running, when all was over


@pytest.fixture(scope="module")
def soaked(shards: Shards, draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soaked]:
    options = (*DECODER, "--draft", str(draft))
    with running(shards(2), tmp_path_factory.mktemp("soak"), stage_options=STAGES, decoder_options=options) as here:
        yield soak(here)


def soak(here: Running) -> Soaked:
    decoder = here.pipeline.decoder
    assert decoder is not None
    pids = {"decoder": decoder.pid, **{f"stage {i}": stage.pid for i, stage in enumerate(here.pipeline.stages)}}

    async def watched(transport: NatsTransport, subjects: Subjects) -> Soaked:
        calm = await calm_answers(Client(transport, subjects))
        ends, footprints, crowd = Ends(), Footprints(pids), Crowd(transport, subjects, wishes(seed=20))
        async with (
            connect(here.pipeline.url, name="auditor") as own,
            own.subscribe(subjects.tokens("*"), limit=1 << 20) as inbox,
            asyncio.TaskGroup() as tasks,
        ):
            watching = [tasks.create_task(ends.listen(inbox)), tasks.create_task(footprints.watch())]
            until = time.monotonic() + 60 * MINUTES
            await asyncio.gather(crowd.bursts(until), *(crowd.user(until) for _ in range(USERS)))
            left = await what_is_left(own, subjects)
            for task in watching:
                task.cancel()
        return Soaked(calm, crowd.asked, ends, footprints, inbox.dropped, left)

    return here.do(watched, seconds=60 * MINUTES + 300)


async def what_is_left(transport: Transport, subjects: Subjects) -> tuple[int, int, int]:
    """From a heartbeat that was sent when all had ended."""
    await collect_once(transport, subjects)
    decoder = (await collect_once(transport, subjects)).decoder
    assert decoder is not None
    return decoder.blocks - decoder.free_blocks, decoder.waiting, decoder.running


def test_every_request_ends_exactly_once_and_nothing_is_told_twice(soaked: Soaked) -> None:
    assert not [request for request, one in soaked.asked.items() if one.final is None]
    assert not soaked.missed and not soaked.ends.torn
    assert {request: soaked.ends.finals[request] for request in soaked.asked} == dict.fromkeys(soaked.asked, 1)
    failed = {one.final.error["code"] for one in soaked.asked.values() if one.final and one.final.error}
    assert failed <= REFUSALS


def test_answers_are_those_of_a_calm_run(soaked: Soaked) -> None:
    """Whole ones up to their limit, cancelled and refused ones as far as they went; sampled ones too."""
    wrong, compared = [], Counter[str]()
    for request, one in soaked.asked.items():
        if one.wish.known is None or one.final is None:
            continue
        for calm, found in zip(soaked.calm[one.wish.known], choices_of(one.final), strict=False):
            whole = found.finish_reason in ("stop", "length")
            length = min(one.wish.fields["max_tokens"], len(calm.ids)) if whole else len(found.ids)
            compared[found.finish_reason] += 1
            if found.ids != calm.ids[:length]:
                wrong.append((request, one.wish.fields, found, calm))
    assert not wrong
    assert compared["length"] > 5 * MINUTES and compared["cancelled"]


def test_everybody_s_turn_comes(soaked: Soaked, capsys: pytest.CaptureFixture[str]) -> None:
    waits = [
        Waited(one.sent, end + (one.final.timings.queued - one.final.timings.total) / 1e3,
               one.wish.fields["priority"], hurried="deadline_ms" in one.wish.fields)
        for request, one in soaked.asked.items()
        if one.final and not one.final.error and (end := soaked.ends.at[request])
    ]  # fmt: skip
    overtaken = sorted(one.overtaken_by(waits) for one in waits)
    with capsys.disabled():
        print(f"\nmost often overtaken at their own priority: {overtaken[-5:]} times, of {len(waits)}")
    assert overtaken[-1] <= MOST_OVERTAKING


def test_nothing_is_left_behind(soaked: Soaked) -> None:
    assert soaked.left == (0, 0, 0)


def test_memory_files_and_threads_stay_as_they_are(soaked: Soaked, capsys: pytest.CaptureFixture[str]) -> None:
    lines, grown = list[str](), list[str]()
    for name in soaked.footprints.samples:
        early, late = (soaked.footprints.between(name, *part) for part in (EARLY, LATE))
        memory = f"{early.mib:.0f} to {late.mib:.0f} MiB ({late.mib / early.mib - 1:+.1%})"
        files, threads = f"{early.open_files} to {late.open_files}", f"{early.threads} to {late.threads}"
        tenths = " ".join(f"{soaked.footprints.between(name, i / 10, (i + 1) / 10).mib:.0f}" for i in range(10))
        lines.append(f"{name}: {memory} [{tenths}], {files} files, {threads} threads")
        if late.mib > GROWTH * early.mib or late.open_files > early.open_files + 2 or late.threads > early.threads + 2:
            grown.append(lines[-1])
    with capsys.disabled():
        print("\n" + "\n".join([summary(soaked), *lines]))
    assert not grown


def summary(soaked: Soaked) -> str:
    """One line for whoever watches."""
    finals = [one.final for one in soaked.asked.values() if one.final]
    ends = Counter(final.error["code"] if final.error else final.finish_reason for final in finals)
    tokens = sum(final.usage.completion_tokens for final in finals)
    waits = max(final.timings.queued for final in finals) / 1e3
    return f"{len(finals)} requests in {MINUTES:g} min, {tokens} tokens, longest wait {waits:.1f} s: " + ", ".join(
        f"{number} {end}" for end, number in ends.most_common()
    )
