"""Which columns a token of a static shard sees: simulated against a plain list of what each column holds."""

import numpy as np
import pytest

from engine.contract.copies import SlotCopy
from engine.contract.errors import StepError, UsageError
from engine.contract.messages import Rows
from engine.contract.static import REWIND, StaticLimits
from stages.columns import Columns

Cell = tuple[int, int] | None  # position, and a number that no other token has


def limits(**changes: int) -> StaticLimits:
    numbers = {"context": 24, "slots": 3, "verify_tokens": 4, "prefill_chunk": 16, "sinks": 0} | changes
    return StaticLimits(**numbers)


def rows(*lines: tuple[int, int, int]) -> Rows:
    """Rows (slot, start, length)."""
    return Rows(np.array([[start, length, slot, 0, 0, 0] for slot, start, length in lines], np.int32), np.array([]))


class Shard:
    """What is really in the columns, beside the sequences as they are."""

    def __init__(self, numbers: StaticLimits) -> None:
        self.limits, self.columns = numbers, Columns(numbers)
        self.cells: list[Cell] = [None] * numbers.columns
        self.sequences: list[list[Cell]] = [[] for _ in range(numbers.slots)]
        self._serial = 0

    def run(self, slot: int, start: int, length: int) -> None:
        """One row, and whether each of its tokens sees what it should."""
        self.columns.check_rows(rows((slot, start, length)))
        sequence = self.sequences[slot][:start]
        for i in range(length):
            self._serial += 1
            sequence.append((start + i, self._serial))
        old, new = self.columns.seen(start, length)
        first = slot * self.limits.cells
        for i in range(length):
            theirs = [self.cells[first + cell] for cell in np.flatnonzero(old[i])]
            theirs += [sequence[start + at] for at in np.flatnonzero(new[i])]
            assert sorted(theirs) == self.wanted(sequence[: start + i + 1])  # type: ignore[reportArgumentType]
        for column, cell in zip(self.columns.columns(slot, start, length), sequence[start:], strict=True):
            self.cells[column] = cell
        self.columns.write(slot, start, length)
        self.sequences[slot] = sequence

    def copy(self, copy: SlotCopy) -> None:
        self.columns.check_copies([copy])
        theirs, mine = self.columns.copy(copy)
        self.cells[mine] = self.cells[theirs]
        self.sequences[copy.target] = self.sequences[copy.source][: copy.tokens]

    def wanted(self, sequence: list[Cell]) -> list[Cell]:
        """The sinks and the last tokens, `context` in all."""
        if len(sequence) <= self.limits.context:
            return sequence
        return sequence[: self.limits.sinks] + sequence[self.limits.sinks - self.limits.context :]


@pytest.mark.parametrize("sinks", [1, 4, 12])
def test_a_sequence_that_slides_sees_its_sinks_and_its_last_tokens(sinks: int) -> None:
    shard = Shard(limits(sinks=sinks, prefill_chunk=12))
    for start in range(0, 240, 12):
        shard.run(1, start, 12)
    for start in range(240, 300):
        shard.run(1, start, 1)


def test_what_was_rejected_pushes_nothing_out_of_sight() -> None:
    shard, noise = Shard(limits(sinks=4)), np.random.default_rng(3)
    start = 0
    for _ in range(300):
        length = int(noise.integers(1, 17))
        shard.run(2, start, length)
        start += int(noise.integers(max(length - REWIND, -start) // 2, length + 1))
        start = max(start, 0)


def test_slots_copies_and_new_sequences_mix(sinks: int = 4) -> None:
    shard, noise = Shard(limits(sinks=sinks)), np.random.default_rng(5)
    for _ in range(600):
        slot = int(noise.integers(3))
        held = len(shard.sequences[slot])
        kind = noise.random()
        if kind < 0.03:
            shard.run(slot, 0, 5)
        elif kind < 0.1 and held > 8:
            shard.copy(SlotCopy(slot, (slot + 1) % 3, held - int(noise.integers(0, 3))))
        else:
            shard.run(slot, max(held - int(noise.integers(0, 3)), 0), int(noise.integers(1, 17)))


def test_a_row_behind_a_hole_is_refused_and_nothing_changes() -> None:
    shard = Shard(limits())
    shard.run(0, 0, 4)
    with pytest.raises(StepError, match="row 1 starts at 6, its slot holds 5"):
        shard.columns.check_rows(rows((0, 4, 1), (0, 6, 1)))
    shard.run(0, 4, 1)


def test_more_than_what_is_kept_for_it_is_not_taken_back() -> None:
    shard = Shard(limits(sinks=4, prefill_chunk=12))
    for start in range(0, 204, 12):
        shard.run(0, start, 12)
    shard.run(0, 204 - REWIND, 1)
    with pytest.raises(StepError, match=f"slot 0 starts at 100, but it has slid on to 204: only its last {REWIND}"):
        shard.columns.check_rows(rows((0, 100, 1)))
    with pytest.raises(StepError, match="slot 1 wants the first 90 tokens of slot 0"):
        shard.columns.check_copies([SlotCopy(0, 1, 90)])
    shard.run(0, 0, 1)


def test_a_copy_of_a_copy_is_as_little_taken_back() -> None:
    shard = Shard(limits(sinks=4, prefill_chunk=12))
    for start in range(0, 204, 12):
        shard.run(0, start, 12)
    with pytest.raises(StepError, match="slot 2 wants the first 50 tokens of slot 1"):
        shard.columns.check_copies([SlotCopy(0, 1, 200), SlotCopy(1, 2, 50)])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"context": 999}, "--context 999: this model takes 16 to 100"),
        ({"context": 8}, "--context 8"),
        ({"slots": 0}, "--slots 0"),
        ({"verify_tokens": 0}, "--verify-tokens 0"),
        ({"sinks": 13}, "--sinks 13: at most half"),
        ({"sinks": 12}, "--prefill-chunk 16: .* at most 12"),
        ({"prefill_chunk": 4}, r"--prefill-chunk 4: more than --verify-tokens \(4\)"),
    ],
)
def test_numbers_that_do_not_fit_are_named(changes: dict[str, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        limits(**changes).check(100)


def test_numbers_that_fit() -> None:
    limits().check(24)
    limits(prefill_chunk=0, sinks=12).check(100)
