"""Rows of any length become inferences of fixed size, and nobody's depend on a neighbour's."""

from itertools import pairwise

import numpy as np
import pytest

from engine.contract.messages import Rows
from engine.contract.static import StaticLimits
from stages.pieces import Inference, Piece, plan_inferences

LIMITS = StaticLimits(context=64, slots=4, verify_tokens=4, prefill_chunk=32)
ONE_GRAPH = StaticLimits(context=64, slots=4, verify_tokens=4, prefill_chunk=0)
Line = tuple[int, int, int, int, int]


def plan(*lines: Line, limits: StaticLimits = LIMITS) -> list[Inference]:
    """Of rows (slot, start, length, picked start, picked count)."""
    table = [[start, length, slot, picked_from, picked, 0] for slot, start, length, picked_from, picked in lines]
    return list(plan_inferences(Rows(np.array(table, np.int32), np.zeros(0, np.int32)), limits))


def shape(inferences: list[Inference]) -> list[tuple[bool, list[tuple[int, int]]]]:
    return [(one.long, [(piece.slot, piece.length) for piece in one.pieces]) for one in inferences]


def test_short_rows_of_all_slots_share_an_inference() -> None:
    assert shape(plan((2, 9, 1, 0, 1), (0, 30, 4, 0, 4), (3, 5, 2, 0, 1))) == [(False, [(2, 1), (0, 4), (3, 2)])]


def test_a_long_row_goes_in_chunks_and_its_short_tail_with_the_others() -> None:
    assert shape(plan((1, 0, 67, 66, 1), (0, 5, 2, 0, 1))) == [
        (True, [(1, 32)]),
        (False, [(0, 2)]),
        (True, [(1, 32)]),
        (False, [(1, 3)]),
    ]


def test_a_chunk_of_which_nothing_is_wanted_goes_whole() -> None:
    assert shape(plan((1, 0, 32, 0, 0))) == [(True, [(1, 32)])]
    assert shape(plan((1, 0, 36, 0, 2))) == [(False, [(1, 4)]), (True, [(1, 32)])]


def test_a_row_a_little_longer_goes_where_it_costs_less() -> None:
    """Two inferences of 16 tokens are no more than one of 32, three are."""
    assert shape(plan((0, 0, 8, 0, 1))) == [(False, [(0, 4)]), (False, [(0, 4)])]
    assert shape(plan((0, 0, 9, 8, 1))) == [(True, [(0, 9)])]


def test_with_one_graph_everything_goes_through_it() -> None:
    assert shape(plan((0, 0, 10, 9, 1), (1, 0, 1, 0, 1), limits=ONE_GRAPH)) == [
        (False, [(0, 4), (1, 1)]),
        (False, [(0, 4)]),
        (False, [(0, 2)]),
    ]


def test_rows_of_one_slot_follow_each_other() -> None:
    assert shape(plan((0, 0, 4, 0, 0), (1, 0, 3, 0, 0), (0, 4, 2, 0, 1))) == [
        (False, [(0, 4), (1, 3)]),
        (False, [(0, 2)]),
    ]


@pytest.mark.parametrize("limits", [LIMITS, ONE_GRAPH])
def test_every_token_is_computed_once_in_order_and_every_wanted_position_found(limits: StaticLimits) -> None:
    noise = np.random.default_rng(0)
    for _ in range(300):
        lines: list[Line] = []
        for slot in range(4):
            length = int(noise.integers(1, 65))
            first = int(noise.integers(0, length))
            lines.append((slot, int(noise.integers(0, 9)), length, first, int(noise.integers(0, length - first + 1))))
        offset = result = 0
        inferences = plan(*lines, limits=limits)
        for slot, start, length, first, picked in lines:
            mine = [(one.long, piece) for one in inferences for piece in one.pieces if piece.slot == slot]
            pieces = [piece for _, piece in mine]
            assert all(a.start + a.length == b.start for a, b in pairwise(pieces))
            assert sum(piece.length for piece in pieces) == length
            assert [piece.offset - offset for piece in pieces] == [piece.start - start for piece in pieces]
            for long, piece in mine:
                assert piece.length <= (limits.prefill_chunk if long else limits.verify_tokens)
                assert piece.picked <= limits.verify_tokens
            wanted = [(piece.result + i, piece.start + piece.picked_from + i) for piece in pieces for i in picks(piece)]
            assert wanted == [(result + i, start + first + i) for i in range(picked)]
            offset, result = offset + length, result + picked


def picks(piece: Piece) -> range:
    return range(piece.picked)


def test_the_pieces_of_a_row_do_not_depend_on_its_neighbours() -> None:
    row: Line = (2, 3, 45, 44, 1)
    alone = [(one.long, piece.start, piece.length) for one in plan(row) for piece in one.pieces]
    beside = plan((0, 0, 33, 0, 0), row, (1, 7, 1, 0, 1))
    assert [(one.long, p.start, p.length) for one in beside for p in one.pieces if p.slot == 2] == alone
