from dataclasses import replace
from typing import Any

import pytest

from engine.contract.errors import ErrorCode, StepError
from engine.contract.ids import Incarnation
from engine.contract.messages import Step
from stages.gate import Gate
from tests.stages.fakes import identity, opening, step


def opened(epoch: int = 1) -> Gate:
    gate = Gate(Incarnation(7), last=True)
    assert gate.adopt(opening(epoch)).code == ""
    return gate


def refusal(gate: Gate, refused: Step) -> ErrorCode:
    with pytest.raises(StepError) as caught:
        gate.admit(refused)
    return caught.value.code


def test_consecutive_steps_of_the_epoch_pass() -> None:
    gate = opened()
    routes = [gate.admit(step(number)) for number in range(3)]
    assert {route.done for route in routes} == {opening(1).done}


def test_nothing_passes_before_the_first_epoch() -> None:
    assert refusal(Gate(Incarnation(7), last=True), step()) == ErrorCode.UNKNOWN_EPOCH


def test_step_of_an_older_epoch_is_stale() -> None:
    assert refusal(opened(5), step(epoch=4)) == ErrorCode.STALE_EPOCH


def test_step_of_an_epoch_that_was_not_opened_is_unknown() -> None:
    assert refusal(opened(5), step(epoch=6)) == ErrorCode.UNKNOWN_EPOCH


def test_step_for_another_incarnation_is_foreign() -> None:
    assert refusal(opened(), step(incarnation=8)) == ErrorCode.FOREIGN_INCARNATION


def test_repeated_step_is_refused_and_the_epoch_goes_on() -> None:
    gate = opened()
    gate.admit(step(0))
    assert refusal(gate, step(0)) == ErrorCode.STEP_REPEATED
    gate.admit(step(1))


def test_gap_is_refused() -> None:
    assert refusal(opened(), step(1)) == ErrorCode.STEP_GAP


def test_after_a_gap_the_missing_step_comes_too_late() -> None:
    gate = opened()
    refusal(gate, step(1))
    assert refusal(gate, step(0)) == ErrorCode.STEP_GAP


def test_after_a_failed_step_every_later_one_is_a_gap() -> None:
    gate = opened()
    gate.admit(step(0))
    gate.close_epoch()
    assert [refusal(gate, step(number)) for number in (0, 1, 2)] == [ErrorCode.STEP_GAP] * 3


def test_a_new_epoch_mends_a_gap_and_counts_from_zero() -> None:
    gate = opened()
    gate.admit(step(0))
    refusal(gate, step(2))
    assert gate.adopt(opening(2)).code == ""
    gate.admit(step(0, epoch=2))


@pytest.mark.parametrize("epoch", [3, 2])
def test_an_epoch_that_is_not_newer_is_refused(epoch: int) -> None:
    gate = opened(3)
    answer = gate.adopt(opening(epoch))
    assert (answer.code, answer.epoch) == (ErrorCode.STALE_EPOCH, 3)


def test_another_protocol_is_refused_by_code_and_nothing_changes() -> None:
    gate = opened(3)
    assert gate.adopt(opening(4, protocol=99)).code == ErrorCode.WRONG_VERSION
    assert gate.epoch == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"next_subject": "somewhere"},
        {"done": ""},
        {"done": "two words"},
        {"epoch": 1 << 63},
        {"next_incarnation": -1},
    ],
)
def test_malformed_open_is_refused(changes: dict[str, Any]) -> None:
    gate = Gate(Incarnation(7), last=True)
    assert gate.adopt(replace(opening(), **changes)).code == ErrorCode.MALFORMED_FRAME


def test_a_stage_in_the_middle_needs_to_know_the_next() -> None:
    gate = Gate(Incarnation(7), last=False)
    assert gate.adopt(opening(1)).code == ErrorCode.MALFORMED_FRAME
    assert gate.adopt(opening(1, then=identity(1, 2, 9))).code == ""
