import asyncio
from pathlib import Path

import pytest

from engine.contract.errors import UsageError
from engine.contract.manifest import load_manifest
from engine.transport.memory import MemoryBroker, MemoryTransport
from stages.checks import ShardShape
from stages.probe import Milliseconds, Parts, measure_hop, parts_of, separate
from tests.conftest import Shards


def shape(*, first: bool, last: bool) -> ShardShape:
    return ShardShape(first=first, last=last, hidden_size=4, vocabulary=8)


def took(milliseconds: float) -> Milliseconds:
    return {("decode", 1, 2): milliseconds}


@pytest.mark.parametrize(
    ("first", "last", "parts"),
    [
        (True, True, Parts((1, 5), (1, 9), (0, 5), (5, 10))),
        (True, False, Parts((1, 5), (1, 9), (0, 5), None)),
        (False, False, Parts((0, 5), (0, 10), None, None)),
    ],
)
def test_embedding_and_head_are_left_out_of_the_middle(first: bool, last: bool, parts: Parts) -> None:
    assert parts_of(shape(first=first, last=last), 10) == parts


def test_a_shard_of_too_few_layers_cannot_be_told_apart() -> None:
    assert parts_of(shape(first=True, last=True), 4) == Parts((1, 2), (1, 3), (0, 2), (2, 4))
    with pytest.raises(UsageError, match="fewer stages"):
        parts_of(shape(first=True, last=True), 3)


def test_a_long_shard_is_measured_in_part() -> None:
    assert parts_of(shape(first=False, last=False), 80) == Parts((0, 6), (0, 12), None, None)


def times(half: float, middle: float, front: float = 0.0, tail: float = 0.0) -> dict[tuple[int, int], Milliseconds]:
    return {(1, 5): took(half), (1, 9): took(middle), (0, 5): took(front), (5, 10): took(tail)}


WHOLE = Parts((1, 5), (1, 9), (0, 5), (5, 10))


def test_the_parts_of_a_time_are_found_again() -> None:
    # 2 ms a layer, 3 ms a step, 0.5 ms for the embedding, 7 ms for the head
    (timing,) = separate(WHOLE, times(11.0, 19.0, 13.5, 20.0))
    assert (timing.layer, timing.fixed, timing.embedding, timing.head) == (2.0, 3.0, 0.5, 7.0)


def test_a_shard_in_the_middle_has_neither_embedding_nor_head() -> None:
    (timing,) = separate(Parts((1, 5), (1, 9), None, None), times(8.0, 16.0))
    assert (timing.layer, timing.fixed, timing.embedding, timing.head) == (2.0, 0.0, None, None)


@pytest.mark.parametrize("half", [0.1, 9.0, 25.0])
def test_noise_makes_no_time_negative(half: float) -> None:
    (timing,) = separate(WHOLE, times(half, 19.0, 1.0, 1.0))
    assert min(timing.layer, timing.fixed, timing.embedding or 0.0, timing.head or 0.0) >= 0
    assert timing.layer > 0


async def _hop() -> float:
    return await measure_hop(MemoryTransport(MemoryBroker()), "shardline.d.m.probe.1", size=64)


def test_a_hop_takes_time() -> None:
    assert 0 < asyncio.run(_hop()) < 1000


@pytest.mark.model
@pytest.mark.parametrize("kind", ["paged", "stateful"])
def test_the_parts_of_a_real_shard_add_up_to_it(shards: Shards, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from stages import probe  # noqa: PLC0415  OpenVINO
    from stages.settings import RunnerOptions  # noqa: PLC0415

    monkeypatch.setattr(probe, "SECONDS", 0.1)
    folder: Path = shards(3)
    manifest = load_manifest(folder)
    options = RunnerOptions(kind=kind, profile="exact", threads=1)  # pyright: ignore[reportArgumentType]
    first, middle, last = (probe.probe_shard(folder, manifest, index, options, "me") for index in range(3))
    assert [one.layers for one in (first, middle, last)] == [(0, 5), (5, 25), (25, 30)]
    assert all(timing.head is None and timing.embedding is None for timing in middle.timings)
    assert all(timing.head is not None for timing in last.timings)
    assert {timing.load for timing in middle.timings} == {"decode", "verify", "prefill"}
    slow = next(timing for timing in middle.timings if timing.load == "prefill")
    quick = next(timing for timing in middle.timings if timing.load == "decode")
    assert slow.layer > quick.layer
    assert middle.memory > 0
