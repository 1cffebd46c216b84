"""Does the machine's owner need it? A decision on values: no clock, no sensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

QUIET_SHARE: Final = 0.5  # of the threshold: what brought a worker away must be well over before it comes back


@dataclass(frozen=True, slots=True, kw_only=True)
class YieldPolicy:
    """When a worker gives way."""

    cpu: float  # share of all cores that others may use, 0 to 1
    battery: float  # charge, 0 to 1, from which down it gives way while nothing charges it
    after: float  # seconds that others must use more
    back: float  # seconds without a reason, before it comes back


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The machine at one moment."""

    others: float  # share of all cores that processes of others used lately, 0 to 1
    battery: float | None = None  # charge, 0 to 1, while running from it; None: from the mains


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to give way."""

    reason: str = ""  # why; "" to serve
    since: float | None = None  # seconds: from when on all usage spoke against it; None: the last did not


def judge(before: Verdict, usage: Usage, policy: YieldPolicy, now: float) -> Verdict:
    """The verdict at `now`; a battery in use counts at once, anything else when it lasts."""
    on_battery = usage.battery is not None and usage.battery <= policy.battery
    wanted = "on battery" if on_battery else _crowded(usage.others, policy.cpu, already=bool(before.reason))
    if bool(wanted) == bool(before.reason):
        return Verdict(before.reason)
    since = now if before.since is None else before.since
    patience = 0.0 if on_battery else policy.after if wanted else policy.back
    return Verdict(wanted) if now - since >= patience else Verdict(before.reason, since)


def _crowded(others: float, threshold: float, *, already: bool) -> str:
    limit = threshold * QUIET_SHARE if already else threshold
    return f"others use {others:.0%} of the processors" if others > limit else ""


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since some start."""

    wall: float
    busy: float  # of all cores together, by all processes
    ours: Mapping[int, float]  # by process id


def others_share(before: CpuTimes, after: CpuTimes, cores: int) -> float:
    """Share of all cores that other processes used between two readings, 0 to 1.

    A process of ours that was not there before counts as nobody's until the next reading.
    """
    wall = after.wall - before.wall
    if wall <= 0:
        return 0.0
    ours = sum(after.ours[pid] - before.ours[pid] for pid in after.ours.keys() & before.ours.keys())
    return min(max((after.busy - before.busy - ours) / (cores * wall), 0.0), 1.0)
