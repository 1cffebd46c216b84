"""When a worker gives way to the machine's owner."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Collection, Sequence

import psutil
import pytest

from stages.giveway import GiveWay, Sensors
from stages.owner import CpuTimes, Usage, Verdict, YieldPolicy, judge, others_share

POLICY = YieldPolicy(cpu=0.5, battery=1.0, after=5.0, back=60.0)
IDLE, BUSY, UNPLUGGED = Usage(others=0.0), Usage(others=0.8), Usage(others=0.0, battery=0.9)


def verdicts(*usages: tuple[float, Usage], policy: YieldPolicy = POLICY) -> list[str]:
    """Reasons after each look (at, what is seen)."""
    verdict, reasons = Verdict(), list[str]()
    for at, usage in usages:
        verdict = judge(verdict, usage, policy, at)
        reasons.append(verdict.reason)
    return reasons


def test_others_who_use_the_processors_for_a_while_are_given_way_to() -> None:
    assert verdicts((0, BUSY), (4, BUSY), (5, BUSY)) == ["", "", "others use 80% of the processors"]


def test_a_short_peak_is_not() -> None:
    assert verdicts((0, BUSY), (4, IDLE), (5, BUSY), (9, BUSY)) == [""] * 4


def test_a_battery_counts_at_once_and_its_charge_can_matter() -> None:
    assert verdicts((0, UNPLUGGED)) == ["on battery"]
    low = YieldPolicy(cpu=0.5, battery=0.3, after=5.0, back=60.0)
    assert verdicts((0, UNPLUGGED), (1, Usage(others=0.0, battery=0.3)), policy=low) == ["", "on battery"]


def test_a_worker_comes_back_when_all_is_quiet_for_long() -> None:
    seen = verdicts((0, UNPLUGGED), (1, IDLE), (60, IDLE), (61, IDLE), (62, IDLE))
    assert seen == ["on battery", "on battery", "on battery", "", ""]


def test_what_is_only_just_below_the_threshold_brings_nobody_back() -> None:
    nearly = Usage(others=0.4)
    assert verdicts((0, UNPLUGGED), (1, nearly), (100, nearly), (200, nearly))[-1] == "on battery"
    assert verdicts((0, nearly), (100, nearly)) == ["", ""]


def test_one_look_that_speaks_for_staying_away_starts_the_wait_again() -> None:
    assert verdicts((0, UNPLUGGED), (1, IDLE), (50, BUSY), (51, IDLE), (90, IDLE), (111, IDLE))[-2:] == [
        "on battery",
        "",
    ]


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        (CpuTimes(0, 0, {1: 0}), CpuTimes(10, 12, {1: 2}), 0.5),  # of two cores
        (CpuTimes(0, 0, {1: 0}), CpuTimes(10, 12, {1: 12}), 0.0),
        (CpuTimes(0, 0, {1: 0}), CpuTimes(10, 12, {1: 2, 2: 50}), 0.5),  # 2 is new
        (CpuTimes(0, 0, {1: 0, 2: 5}), CpuTimes(10, 12, {1: 2}), 0.5),  # 2 has ended
        (CpuTimes(0, 0, {1: 0}), CpuTimes(10, 8, {1: 9}), 0.0),  # clocks of processes and system differ a little
        (CpuTimes(5, 0, {}), CpuTimes(5, 3, {}), 0.0),
    ],
)
def test_what_others_use_is_what_is_not_ours(before: CpuTimes, after: CpuTimes, share: float) -> None:
    assert others_share(before, after, cores=2) == pytest.approx(share)


class Told:
    """Remembers what a worker is told."""

    def __init__(self, stop: asyncio.Event, last: int) -> None:
        self.reasons: list[str] = []
        self._stop, self._last = stop, last

    def give_way(self, reason: str) -> None:
        self.reasons.append(reason)
        if len(self.reasons) == self._last:
            self._stop.set()

    def neighbours(self) -> Collection[int]:
        return [1, 2]


def test_a_worker_is_told_when_the_verdict_changes_and_only_then() -> None:
    seen: list[Collection[int]] = []

    async def main(usages: Sequence[Usage]) -> list[str]:
        stop, rest = asyncio.Event(), iter(usages)
        told = Told(stop, 2)

        def look(ours: Collection[int]) -> Usage:
            seen.append(ours)
            return next(rest)

        policy = YieldPolicy(cpu=0.5, battery=1.0, after=0.0, back=0.0)
        async with asyncio.timeout(5):
            await GiveWay(told, policy, look, seconds=0.0).run(stop)
        return told.reasons

    assert asyncio.run(main([IDLE, UNPLUGGED, UNPLUGGED, IDLE])) == ["on battery", ""]
    assert seen == [[1, 2]] * 4


def test_what_a_process_that_is_named_ours_computes_is_not_others() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        naming, without = Sensors(), Sensors()
        naming.look([process.pid])
        without.look([])
        worked = psutil.Process(process.pid).cpu_times
        began, since = worked().user, time.monotonic()
        while worked().user < began + 0.3:
            pass
        difference = without.look([]).others - naming.look([process.pid]).others
        share = 0.3 / (time.monotonic() - since) / (psutil.cpu_count() or 1)  # on a busy machine it gets little
        process.kill()
    assert difference > 0.5 * share
