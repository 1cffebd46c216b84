"""How the rows of a step become inferences of fixed size. Numbers only.

How a row is cut, which graph takes each piece and which of its lanes, follows from the row alone, never from its
neighbours: so a sequence gets the same numbers alone and beside others.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.contract.messages import Rows
from engine.contract.static import StaticLimits


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens of one row."""

    slot: int
    start: int  # position in its sequence
    length: int
    offset: int  # of its first token in the step
    picked: int  # positions that are wanted
    picked_from: int  # within the piece
    result: int  # the first of these among all that the step wants


@dataclass(frozen=True, slots=True)
class Inference:
    """What one inference computes: pieces of different slots, or one long piece alone."""

    pieces: tuple[Piece, ...]
    long: bool  # by the second graph


def plan_inferences(rows: Rows, limits: StaticLimits) -> Iterator[Inference]:
    """The inferences of a step, in an order in which each piece finds what was before it."""
    queues: dict[int, list[Piece]] = {}
    offset = result = 0
    for start, length, slot, picked_from, picked, _ in rows.table.tolist():
        row = Piece(slot, start, length, offset, picked, picked_from, result)
        queues.setdefault(slot, []).extend(_cut(row, limits))
        offset, result = offset + length, result + picked
    while queues:
        heads = [queue.pop(0) for queue in queues.values()]
        queues = {slot: queue for slot, queue in queues.items() if queue}
        yield from (Inference((piece,), long=True) for piece in heads if piece.length > limits.verify_tokens)
        if short := tuple(piece for piece in heads if piece.length <= limits.verify_tokens):
            yield Inference(short, long=False)


def _cut(row: Piece, limits: StaticLimits) -> Iterator[Piece]:
    at = 0
    while at < row.length:
        behind = not row.picked or at >= row.picked_from + row.picked
        length = _take(row.length - at, row.length - at if behind else row.picked_from - at, limits)
        first = min(max(row.picked_from, at), at + length)
        end = min(max(row.picked_from + row.picked, at), at + length)
        before = max(first - row.picked_from, 0)
        wanted = max(end - first, 0)
        yield Piece(row.slot, row.start + at, length, row.offset + at, wanted, first - at, row.result + before)
        at += length


def _take(left: int, unpicked: int, limits: StaticLimits) -> int:
    """Tokens of the next piece: by the graph that computes fewer of them in all.

    The second has its head for no more positions than a slot has lanes in the first.
    """
    short = limits.verify_tokens
    if left <= short or -(-left // short) * limits.lanes <= limits.prefill_chunk or not limits.prefill_chunk:
        return min(left, short)
    return max(min(left, limits.prefill_chunk, max(unpicked, 0) + short), min(left, short))
