"""The screen of `shardline top`, and what it computes for it."""

from io import StringIO

import pytest
from rich.console import Console

from engine.contract.figures import Answers, Histogram, OpenRequest
from engine.monitoring.depth import Depths
from engine.monitoring.quantile import quantile, since
from engine.monitoring.top import Top, bar, spark
from engine.transport.base import QueueDepth
from tests.decoder.test_fleet import heartbeat
from tests.monitoring.test_depth import decoder_heartbeat

BOUNDS = (0.1, 0.2, 0.4)


def seen(*looks: Depths) -> str:
    top, out = Top("m in default"), StringIO()
    for depths in looks:
        top.look(depths)
    Console(file=out, width=140).print(top.view(clock="12:00:00"))
    return out.getvalue()


def look(busy: float = 0.0, active: float = 0.0, times: tuple[int, ...] = (0, 0, 0, 0)) -> Depths:
    workers = (heartbeat(0, busy_seconds=busy, busy_share=0.42), heartbeat(1, busy_seconds=busy / 2))
    answers = Answers(token_seconds=Histogram(bounds=BOUNDS, counts=times))
    request = OpenRequest(id="abcdefgh", state="answer", tokens=50, prompt_tokens=12, seconds=2.5)
    decoder = decoder_heartbeat(
        active_seconds=active, answers=answers, tokens_per_second=20.0, running=3, open_requests=(request,)
    )
    return Depths(workers, (), decoder, QueueDepth(7, 3, 0, 1, 12.0))


def test_it_shows_stages_queue_speed_and_open_requests() -> None:
    text = seen(look(), look(busy=3.0, active=4.0, times=(0, 10, 0, 0)))
    assert "m in default  serving  12:00:00" in text
    assert "42%" in text
    assert "25%" in text and "62%" in text  # bubbles
    assert "7 queued, oldest 12 s, 1 dead" in text
    assert "p50 150 ms, p95 195 ms" in text
    assert "abcdefgh" in text and "20.0" in text
    assert "and 2 more" in text


def test_it_says_what_is_missing() -> None:
    text = seen(Depths((heartbeat(0), None), (), decoder_heartbeat(), None))
    assert "not serving: stage 1 is missing" in text
    assert "no open requests" in text
    assert "not serving: no decoder is heard" in seen(Depths((), (), None, None))


def test_before_the_first_look_it_listens() -> None:
    assert "listening" in seen()


def test_only_what_was_observed_lately_counts() -> None:
    before, after = Histogram(bounds=BOUNDS, counts=(5, 0, 0, 0)), Histogram(bounds=BOUNDS, counts=(5, 4, 0, 0))
    assert since(before, after).counts == (0, 4, 0, 0)
    assert since(after, before) == before  # another process: its counts begin anew
    assert since(Histogram(), after) == after


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [((4, 0, 0, 0), 0.5, 0.05), ((0, 0, 4, 0), 0.5, 0.3), ((1, 0, 0, 9), 0.95, 0.4), ((0, 0, 0, 0), 0.5, None)],
)
def test_a_quantile_lies_within_its_bucket(counts: tuple[int, ...], share: float, expected: float | None) -> None:
    found = quantile(Histogram(bounds=BOUNDS, counts=counts), share)
    assert found == (pytest.approx(expected) if expected is not None else None)


def test_curves_and_bars_reach_from_nothing_to_all() -> None:
    assert spark([0, 5, 10]) == " ▄█"
    assert spark([0, 0]) == "  "
    assert (bar(0, 2), bar(0.5, 2), bar(1, 2), bar(7, 2)) == ("  ", "█ ", "██", "██")
