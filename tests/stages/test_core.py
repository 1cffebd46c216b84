import dataclasses

import numpy as np
import pytest

from engine.contract.copies import SlotCopy, copies_of, with_copies
from engine.contract.errors import ErrorCode
from engine.contract.messages import Step, StepFailed, StepResult
from engine.wire.frame import decode, encode
from stages.core import Outgoing, StageCore
from tests.stages.fakes import (
    DECODER,
    SUBJECTS,
    AddingShard,
    broken_device,
    identity,
    opening,
    step,
)

DONE = SUBJECTS.done(DECODER, 1)
NEXT = identity(1, 2, incarnation=9)


def last_stage(shard: AddingShard | None = None) -> StageCore:
    core = StageCore(identity(), shard or AddingShard(last=True), SUBJECTS)
    core.open(opening(1))
    return core


def failure(outgoing: Outgoing | None) -> StepFailed:
    assert outgoing is not None
    frame = decode(outgoing.data)
    assert isinstance(frame, StepFailed)
    return frame


def test_the_last_stage_answers_the_decoder_with_token_ids() -> None:
    out = last_stage().handle(encode(step(0, tokens=(5, 6))))
    assert out is not None
    frame = decode(out.data)
    assert isinstance(frame, StepResult)
    assert (out.subject, frame.tokens.tolist(), frame.incarnation) == (DONE, [7], 7)


def test_another_stage_sends_hidden_states_and_the_same_rows_to_the_next() -> None:
    core = StageCore(identity(0, 2), AddingShard(), SUBJECTS)
    core.open(opening(1, then=NEXT))
    sent = step(0, tokens=(5, 6))
    out = core.handle(encode(sent))
    assert out is not None
    frame = decode(out.data)
    assert isinstance(frame, Step)
    assert (out.subject, frame.incarnation) == (SUBJECTS.stage(1, 9), 9)
    assert np.array_equal(frame.rows.table, sent.rows.table)
    assert frame.value[:, 0].tolist() == [6.0, 7.0]


def test_a_refused_step_is_never_computed() -> None:
    shard = AddingShard(last=True)
    core = last_stage(shard)
    assert failure(core.handle(encode(step(3)))).code == ErrorCode.STEP_GAP
    assert shard.seen == []


def test_a_failure_names_stage_epoch_and_step() -> None:
    failed = failure(last_stage().handle(encode(step(3))))
    assert (failed.stage, failed.epoch, failed.number, failed.incarnation) == (0, 1, 3, 7)


def test_a_stale_step_is_dropped_and_counted() -> None:
    core = last_stage()
    core.open(opening(2))
    assert core.handle(encode(step(0, epoch=1)), DONE) is None
    assert core.refused == 1


def test_an_unknown_epoch_is_reported_where_its_decoder_waits() -> None:
    out = last_stage().handle(encode(step(0, epoch=4)), SUBJECTS.done("other", 4))
    assert out is not None
    assert (out.subject, failure(out).code) == (SUBJECTS.done("other", 4), ErrorCode.UNKNOWN_EPOCH)


def test_an_unknown_epoch_from_another_stage_is_not_reported_to_that_stage() -> None:
    assert last_stage().handle(encode(step(0, epoch=4)), SUBJECTS.stage_gone(0, 3, 4)) is None


def test_bytes_that_are_no_frame_are_dropped_and_counted() -> None:
    core = last_stage()
    assert [core.handle(data) for data in (b"", b"hello", encode(step())[:-1])] == [None] * 3
    assert core.refused == 3


def test_a_frame_of_another_kind_is_dropped() -> None:
    core = last_stage()
    result = core.handle(encode(step(0)))
    assert result is not None
    assert core.handle(result.data) is None


def test_a_frame_of_another_version_is_reported_to_the_current_decoder() -> None:
    data = bytearray(encode(step(0)))
    data[4] = 99
    out = last_stage().handle(bytes(data))
    assert out is not None
    assert (out.subject, failure(out).code) == (DONE, ErrorCode.WRONG_VERSION)


def test_a_frame_of_another_version_is_dropped_while_there_is_no_decoder() -> None:
    data = bytearray(encode(step(0)))
    data[4] = 99
    assert StageCore(identity(), AddingShard(last=True), SUBJECTS).handle(bytes(data)) is None


@pytest.mark.parametrize("cause", ["rows", "device"])
def test_after_a_step_that_could_not_be_computed_the_epoch_is_over(cause: str) -> None:
    shard = AddingShard(last=True)
    core = last_stage(shard)
    if cause == "device":
        shard.fail_next = broken_device()
    codes = [failure(core.handle(encode(step(n, start=-1 if cause == "rows" else 0)))).code for n in (0, 1)]
    assert codes == [ErrorCode.INVALID_ROWS if cause == "rows" else ErrorCode.DEVICE_FAILED, ErrorCode.STEP_GAP]
    assert shard.seen == []


@pytest.mark.parametrize("gone", [True, False])
def test_after_its_device_failed_a_worker_is_opened_only_if_it_still_computes(gone: bool) -> None:
    checks: list[bool] = []

    def check() -> None:
        checks.append(gone)
        if gone:
            raise broken_device()

    shard = AddingShard(last=True)
    core = StageCore(identity(), shard, SUBJECTS, check)
    assert core.open(opening(1)).code == ""
    shard.fail_next = broken_device()
    assert failure(core.handle(encode(step(0)))).code == ErrorCode.DEVICE_FAILED
    assert core.open(opening(2)).code == (ErrorCode.DEVICE_FAILED if gone else "")
    core.open(opening(3))
    assert len(checks) == (2 if gone else 1)


def test_a_new_epoch_empties_the_runner_and_computes_again() -> None:
    shard = AddingShard(last=True)
    core = last_stage(shard)
    core.handle(encode(step(5)))
    core.open(opening(2))
    out = core.handle(encode(step(0, epoch=2)))
    assert out is not None
    assert (out.computed, shard.resets) == (True, 2)


def test_a_refused_epoch_does_not_empty_the_runner() -> None:
    shard = AddingShard(last=True)
    last_stage(shard).open(opening(1))
    assert shard.resets == 1


def test_steps_that_wait_are_dropped_once_a_newer_epoch_is_announced() -> None:
    shard = AddingShard(last=True)
    core = last_stage(shard)
    core.announce(opening(2))
    assert core.handle(encode(step(0))) is None
    assert shard.seen == []


def test_announcing_an_epoch_that_would_be_refused_drops_nothing() -> None:
    core = last_stage()
    core.announce(opening(2, protocol=99))
    out = core.handle(encode(step(0)))
    assert out is not None and out.computed


def test_rare_fields_travel_on() -> None:
    core = StageCore(identity(0, 2), AddingShard(), SUBJECTS)
    core.open(opening(1, then=NEXT))
    out = core.handle(encode(dataclasses.replace(step(0), extra={"k": 1})))
    assert out is not None
    frame = decode(out.data)
    assert isinstance(frame, Step) and frame.extra == {"k": 1}


def test_copies_between_slots_are_made_before_the_rows_and_go_on_to_the_next_stage() -> None:
    shard = AddingShard()
    core = StageCore(identity(0, 2), shard, SUBJECTS)
    core.open(opening(1, then=NEXT))
    copies = (SlotCopy(0, 1, 40),)
    out = core.handle(encode(dataclasses.replace(step(0), extra=with_copies(copies))))
    assert out is not None
    frame = decode(out.data)
    assert isinstance(frame, Step)
    assert tuple(shard.copied) == copies_of(frame.extra) == copies


def test_a_malformed_copy_is_refused_and_nothing_is_computed_until_a_new_epoch() -> None:
    shard = AddingShard(last=True)
    core = last_stage(shard)
    assert failure(core.handle(encode(dataclasses.replace(step(0), extra={"copy": [[1]]})))).code == "invalid_rows"
    assert failure(core.handle(encode(step(1)))).code == "step_gap"
    assert not shard.seen
