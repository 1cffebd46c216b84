"""Steps and what comes for them straight from the decoder, in every order."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from engine.contract.errors import ErrorCode
from engine.contract.ids import Epoch, Incarnation, StepNumber
from engine.contract.messages import StepFailed, StepResult, StepSide
from engine.contract.sampling import Sampling
from engine.contract.side import RowSide
from engine.transport.base import Incoming
from engine.wire.frame import decode, encode
from stages.core import StageCore
from stages.joining import MAX_SIDES, Joining
from tests.stages.fakes import SUBJECTS, AddingShard, identity, opening, step


def incoming(data: bytes) -> Incoming:
    return Incoming("subject", data, "", False, 0.0)


def side(number: int = 0, *, epoch: int = 1, incarnation: int = 7, **row: object) -> bytes:
    fields = {"row": 0, "how": Sampling(logit_bias={20: 50.0}), "position": 2}
    return encode(
        StepSide(
            epoch=Epoch(epoch),
            number=StepNumber(number),
            incarnation=Incarnation(incarnation),
            rows=(RowSide(**(fields | row)),),  # type: ignore[arg-type]
        )
    )


def wanting(number: int = 0, sides: int = 1, *, epoch: int = 1) -> bytes:
    return encode(replace(step(number, epoch=epoch), sides=sides))


def names(frames: Sequence[object]) -> list[tuple[int, int]]:
    """Number and sides of each."""
    return [(decode(frame.data).number, len(frame.sides)) for frame in frames]  # type: ignore[attr-defined]


def test_a_step_without_wishes_passes_at_once() -> None:
    assert names(Joining(last=True).add(incoming(encode(step())))) == [(0, 0)]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_in_any_order_of_arrival_each_step_gets_its_sides_and_steps_keep_theirs(order: tuple[int, ...]) -> None:
    frames = [side(0), side(1), side(1), None]
    joining, found = Joining(last=True), []
    for i in order:
        if frames[i] is None:
            for data in (wanting(0), wanting(1, 2), encode(step(2))):
                found += joining.add(incoming(data))
        else:
            found += joining.add(incoming(frames[i]))
    assert names(found) == [(0, 1), (1, 2), (2, 0)]


def test_what_will_never_be_whole_is_let_go_when_a_newer_epoch_speaks() -> None:
    joining = Joining(last=True)
    assert joining.add(incoming(wanting(0))) == []
    assert names(joining.add(incoming(encode(step(0, epoch=2))))) == [(0, 0), (0, 0)]


def test_what_waits_at_the_end_is_let_go() -> None:
    joining = Joining(last=True)
    joining.add(incoming(wanting(0)))
    assert names(joining.rest()) == [(0, 0)]


def test_sides_of_steps_that_never_come_do_not_pile_up() -> None:
    joining = Joining(last=True)
    for number in range(3 * MAX_SIDES):
        joining.add(incoming(side(number)))
    assert joining.add(incoming(wanting(0))) == []  # forgotten
    assert names(joining.add(incoming(encode(step(0, epoch=2))))) == [(0, 0), (0, 0)]


def test_other_stages_wait_for_nothing() -> None:
    assert names(Joining(last=False).add(incoming(wanting(0)))) == [(0, 0)]


def last_stage() -> StageCore:
    core = StageCore(identity(), AddingShard(last=True), SUBJECTS)
    core.open(opening(1))
    return core


def test_the_last_stage_chooses_as_its_side_says() -> None:
    out = last_stage().handle(wanting(), "", [side()])
    assert out is not None
    frame = decode(out.data)
    assert isinstance(frame, StepResult) and frame.tokens.tolist() == [20]


@pytest.mark.parametrize(
    ("sides", "code"),
    [
        ([], ErrorCode.SIDE_MISSING),
        ([b"nonsense"], ErrorCode.INVALID_ROWS),
        ([side(incarnation=8)], ErrorCode.FOREIGN_INCARNATION),
        ([side(row=1)], ErrorCode.INVALID_ROWS),
        ([side(row=-1)], ErrorCode.INVALID_ROWS),
        ([side(how=Sampling(logit_bias={50: 1.0}))], ErrorCode.INVALID_ROWS),
        ([side(said=(3,), times=())], ErrorCode.INVALID_ROWS),
        ([side(drafts=(-1,))], ErrorCode.INVALID_ROWS),
        ([side(masks=np.zeros((2, 2), np.int32))], ErrorCode.INVALID_ROWS),
        ([side(masks=np.zeros((1, 1), np.int32))], ErrorCode.INVALID_ROWS),
    ],
)
def test_a_side_that_does_not_fit_its_step_is_refused_and_nothing_is_sent_on(
    sides: list[bytes], code: ErrorCode
) -> None:
    out = last_stage().handle(wanting(), "", sides)
    assert out is not None
    frame = decode(out.data)
    assert isinstance(frame, StepFailed) and frame.code == code
