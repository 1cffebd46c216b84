"""In which order requests are admitted, and which have waited too long: pure functions."""

from collections.abc import Iterable
from math import inf
from typing import Final

from engine.decoder.sequence import Sequence

SUSPECT_LOSSES: Final = 2  # epochs lost in a row without one new token: a request may be what loses them
LEVEL_SECONDS: Final = 30.0  # waited for one level more: from lowest to highest in nine minutes, so nobody starves


def next_waiting(waiting: Iterable[Sequence], now: float) -> Sequence:
    """Whom to admit next. Raises ValueError when nobody waits.

    Higher priority first, waiting counted in; of the same priority those that ran already (their clients see an answer
    pause), then the earlier deadline, then the earlier arrival.
    """
    return min(waiting, key=lambda sequence: _rank(sequence, now))


def _rank(sequence: Sequence, now: float) -> tuple[int, bool, float, float]:
    level = sequence.priority + int((now - sequence.arrived) / LEVEL_SECONDS)
    deadline = inf if sequence.deadline is None or sequence.first_token is not None else sequence.deadline
    return -level, sequence.admitted is None, deadline, sequence.arrived


def cleared(waiting: Iterable[Sequence], running: Iterable[Sequence]) -> list[Sequence]:
    """Who may be admitted beside those that run: when an epoch is lost it must become clear with whom.

    A suspect comes in alone, beside nobody who has no token since the last loss, and the least suspected first; until
    its next token nobody joins it.
    """
    losses = [sequence.idle_losses for sequence in running]
    if any(lost >= SUSPECT_LOSSES for lost in losses):
        return []
    able = list(waiting)
    least = min((s.idle_losses for s in able if s.idle_losses >= SUSPECT_LOSSES), default=0)
    return [s for s in able if s.idle_losses < SUSPECT_LOSSES or (s.idle_losses == least and not any(losses))]


def overdue(waiting: Iterable[Sequence], now: float) -> list[Sequence]:
    """Requests that wait although their answer should have begun."""
    return [s for s in waiting if s.deadline is not None and s.first_token is None and s.deadline <= now]


def next_deadline(waiting: Iterable[Sequence]) -> float | None:
    """When the next of them becomes overdue."""
    return min((s.deadline for s in waiting if s.deadline is not None and s.first_token is None), default=None)
