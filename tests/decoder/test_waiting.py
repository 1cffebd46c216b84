import pytest

from engine.decoder.sequence import Sequence
from engine.decoder.waiting import LEVEL_SECONDS, SUSPECT_LOSSES, cleared, next_deadline, next_waiting, overdue
from tests.decoder.fakes import sequence


def waiting(name: str, arrived: float = 0.0, priority: int = 0, deadline: float | None = None) -> Sequence:
    one = sequence(name)
    one.arrived, one.priority, one.deadline = arrived, priority, deadline
    return one


def order(*sequences: Sequence, now: float = 10.0) -> str:
    left, names = list(sequences), ""
    while left:
        left.remove(one := next_waiting(left, now))
        names += one.id
    return names


def test_the_order_is_priority_then_deadline_then_arrival() -> None:
    assert order(waiting("b", 1.0), waiting("a", 0.5), waiting("c", 2.0)) == "abc"
    assert order(waiting("b"), waiting("c", priority=-1), waiting("a", 5.0, priority=1)) == "abc"
    assert order(waiting("c"), waiting("b", deadline=50.0), waiting("a", 5.0, deadline=40.0)) == "abc"


def test_who_ran_already_comes_first_within_his_priority() -> None:
    ran = waiting("a", 5.0)
    ran.admitted = 6.0
    assert order(waiting("b", deadline=11.0), ran, waiting("0", 7.0, priority=1)) == "0ab"


def test_waiting_lifts_a_request_one_level_at_a_time() -> None:
    low, high = waiting("l", 0.0, priority=-2), waiting("h", 80.0, priority=1)
    assert order(low, high, now=LEVEL_SECONDS * 3 - 1) == "hl"
    assert order(low, high, now=LEVEL_SECONDS * 3 - 1 + 2) == "lh"


def test_a_deadline_counts_until_the_answer_begins() -> None:
    late, begun = waiting("late", deadline=5.0), waiting("begun", deadline=5.0)
    begun.first_token = 3.0
    assert overdue([late, begun, waiting("any"), waiting("soon", deadline=9.0)], 5.0) == [late]
    assert next_deadline([begun, waiting("any"), waiting("soon", deadline=9.0)]) == 9.0
    assert next_deadline([begun]) is None


def lost(name: str, losses: int) -> Sequence:
    one = waiting(name)
    one.idle_losses = losses
    return one


def test_who_was_there_when_epochs_were_lost_runs_alone_until_its_next_token() -> None:
    fresh, once, suspect, worse = (lost(str(n), n) for n in (0, 1, SUSPECT_LOSSES, SUSPECT_LOSSES + 1))
    everybody = [worse, fresh, suspect, once]
    assert cleared(everybody, []) == [fresh, suspect, once]
    assert cleared(everybody, [lost("cleared", 0)]) == [fresh, suspect, once]
    assert cleared(everybody, [lost("not yet", 1)]) == [fresh, once]
    assert cleared(everybody, [lost("on trial", SUSPECT_LOSSES)]) == []


def test_when_nobody_waits_there_is_nobody_to_name() -> None:
    with pytest.raises(ValueError, match="empty"):
        next_waiting([], 0.0)
