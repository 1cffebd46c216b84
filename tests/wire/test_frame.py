import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract.errors import ErrorCode, FrameError
from engine.contract.ids import Epoch, Incarnation, StageIndex, StepNumber
from engine.contract.messages import Frame, Rows, Step, StepFailed, StepResult
from engine.wire.frame import PRELUDE, decode, encode, step_bytes

PLACE = {"epoch": Epoch(7), "number": StepNumber(3), "incarnation": Incarnation(2**62 + 5)}


def rows() -> Rows:
    table = np.array([[0, 3, 1, 2, 1, 1], [40, 2, 0, 0, 1, 2]], np.int32)
    return Rows(table, np.array([5, 6, 7], np.int32))


def step(hidden: int = 4) -> Step:
    value = np.arange(5 * hidden, dtype=np.float32).reshape(5, hidden)
    return Step(rows=rows(), value=value, extra={"why": "rare"}, **PLACE)


def frames() -> list[Frame]:
    return [
        step(),
        Step(rows=rows(), value=np.arange(5, dtype=np.int32), **PLACE),
        StepResult(tokens=np.array([9, 8], np.int32), **PLACE),
        StepResult(tokens=np.array([], np.int32), **PLACE),
        StepFailed(stage=StageIndex(2), code=ErrorCode.STEP_GAP, message="step 4 came, 3 was due", **PLACE),
    ]


def test_a_step_comes_back_as_it_was_sent() -> None:
    sent, back = step(), decode(encode(step()))
    assert isinstance(back, Step)
    assert (back.epoch, back.number, back.incarnation, back.extra) == (7, 3, 2**62 + 5, {"why": "rare"})
    assert np.array_equal(back.rows.table, sent.rows.table)
    assert np.array_equal(back.rows.blocks, sent.rows.blocks)
    assert np.array_equal(back.value, sent.value)
    assert back.value.dtype == np.float32


def test_a_failure_comes_back_as_it_was_sent() -> None:
    failed = frames()[-1]
    assert decode(encode(failed)) == failed


@pytest.mark.parametrize("frame", frames(), ids=lambda f: type(f).__name__)
def test_every_frame_encodes_to_the_same_bytes_again(frame: Frame) -> None:
    assert encode(decode(encode(frame))) == encode(frame)


@pytest.mark.parametrize("frame", frames(), ids=lambda f: type(f).__name__)
def test_a_frame_cut_at_any_byte_is_refused(frame: Frame) -> None:
    data = encode(frame)
    for length in range(len(data)):
        with pytest.raises(FrameError):
            decode(data[:length])


@pytest.mark.parametrize("frame", frames(), ids=lambda f: type(f).__name__)
def test_a_frame_with_bytes_behind_it_is_refused(frame: Frame) -> None:
    with pytest.raises(FrameError):
        decode(encode(frame) + b"\0")


def test_a_frame_of_another_version_is_refused_by_that_name() -> None:
    data = bytearray(encode(step()))
    data[4] += 1
    with pytest.raises(FrameError, match="version") as caught:
        decode(bytes(data))
    assert caught.value.code is ErrorCode.WRONG_VERSION


@given(st.binary(max_size=200), st.binary(min_size=PRELUDE.size - 5, max_size=PRELUDE.size + 100))
def test_any_bytes_decode_or_are_refused(noise: bytes, tail: bytes) -> None:
    for data in (noise, encode(step())[:5] + tail):
        try:
            decode(data)
        except FrameError:
            continue


def test_the_tensor_of_a_frame_is_not_copied_and_is_aligned() -> None:
    data = encode(step())
    back = decode(data)
    assert isinstance(back, Step)
    assert not back.value.flags.owndata
    assert (len(data) - back.value.nbytes) % 16 == 0


def test_step_bytes_bounds_the_frame() -> None:
    bare = Step(rows=rows(), value=step().value, **PLACE)
    assert len(encode(bare)) <= step_bytes(rows=2, blocks=3, tokens=5, hidden=4)


def test_picked_positions_are_counted_through_all_rows() -> None:
    assert rows().picked().tolist() == [2, 3]


def test_verify_rows_pick_several_positions() -> None:
    table = np.array([[9, 4, 0, 0, 4, 0], [0, 3, 0, 0, 0, 0], [5, 2, 0, 1, 1, 0]], np.int32)
    assert Rows(table, np.empty(0, np.int32)).picked().tolist() == [0, 1, 2, 3, 8]
