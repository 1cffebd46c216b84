import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract.errors import StepError
from stages.slot import SlotMask, Spare


def test_rejected_positions_are_masked_and_new_ones_follow_them() -> None:
    slot = SlotMask()
    slot.append(4)
    slot.rewind(2)
    assert slot.append(1).tolist() == [[1, 1, 0, 0, 1]]
    assert (slot.length, slot.physical, slot.masked) == (3, 5, 2)


def test_a_second_rewind_goes_past_masked_positions() -> None:
    slot = SlotMask()
    slot.append(4)
    slot.rewind(3)
    slot.append(2)
    slot.rewind(2)
    assert slot.append(1).tolist() == [[1, 1, 0, 0, 0, 0, 1]]


def test_rewinding_to_nothing_empties_the_slot() -> None:
    slot = SlotMask()
    slot.append(4)
    slot.rewind(0)
    assert slot.append(2).tolist() == [[1, 1]]


def test_a_hole_is_refused() -> None:
    slot = SlotMask()
    slot.append(2)
    with pytest.raises(StepError, match="starts at 3, its slot holds 2"):
        slot.rewind(3)


def test_compacting_keeps_the_real_positions_in_order() -> None:
    slot = SlotMask()
    slot.append(4)
    slot.rewind(2)
    slot.append(2)
    assert slot.compact().tolist() == [0, 1, 4, 5]
    assert slot.masked == 0
    assert slot.append(1).tolist() == [[1] * 5]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.booleans()), max_size=40))
def test_the_mask_always_selects_exactly_the_sequence(rows: list[tuple[int, int, bool]]) -> None:
    """A list of tokens per physical position is the device; the sequence is what a plain list would hold."""
    slot = SlotMask(capacity=2)
    device: list[int] = []
    sequence: list[int] = []
    fresh = 0
    for start, length, compact in rows:
        at = min(start, len(sequence))
        slot.rewind(at)
        if at == 0:
            device = []
        if compact and at:
            device = [device[i] for i in slot.compact()]
        tokens = list(range(fresh, fresh := fresh + length))
        mask = slot.append(length)[0].tolist()
        sequence, device = sequence[:at] + tokens, device + tokens
        assert [token for token, kept in zip(device, mask, strict=True) if kept] == sequence
        assert slot.length == len(sequence)


def test_a_slot_may_carry_a_fixed_number_of_rejected_positions_and_one_more_for_so_many_tokens() -> None:
    spare = Spare(fixed=4, per_tokens=10)
    assert [spare.allows(masked, 25) for masked in (0, 6, 7)] == [True, True, False]
    assert not Spare(0, per_tokens=1 << 30).allows(1, 1000)


def test_a_fork_has_what_counts_and_leaves_its_source_alone() -> None:
    slot = SlotMask()
    slot.append(4)
    slot.rewind(2)
    slot.append(2)
    twin, keep = slot.fork(3)
    assert keep.tolist() == [0, 1, 4]
    assert (twin.length, twin.masked, slot.length, slot.masked) == (3, 0, 4, 2)
    assert twin.append(1).tolist() == [[1, 1, 1, 1]]
    with pytest.raises(StepError):
        slot.fork(5)


def test_a_twin_has_everything_and_goes_its_own_way() -> None:
    slot = SlotMask()
    slot.append(4)
    slot.rewind(3)
    twin = slot.twin()
    twin.rewind(2)
    assert twin.append(1).tolist() == [[1, 1, 0, 0, 1]]
    assert slot.append(1).tolist() == [[1, 1, 1, 0, 1]]
