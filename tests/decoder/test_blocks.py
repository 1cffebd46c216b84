"""The block pool and its prefix index, as a value."""

import pytest

from engine.kv.blocks import BlockPool

A, B, C = (1, 2), (3, 4), (5, 6)


def known(pool: BlockPool, *parts: tuple[int, ...]) -> list[int]:
    """Blocks that hold these parts, one after the other, and are released."""
    blocks = pool.allocate(len(parts))
    pool.register([token for part in parts for token in part], blocks, 0, len(parts), 0)
    pool.release(blocks)
    return blocks


def test_a_pool_gives_what_it_has_and_no_more() -> None:
    pool = BlockPool(3)
    taken = pool.allocate(2)
    assert not pool.can_allocate(2)
    with pytest.raises(ValueError, match="2 blocks wanted, 1 free"):
        pool.allocate(2)
    pool.release(taken)
    assert pool.free == 3


def test_known_beginnings_are_found_block_by_block() -> None:
    pool = BlockPool(8, 2)
    blocks = known(pool, A, B, C)
    assert pool.match([*A, *B, *C], 6) == blocks
    assert pool.match([*A, *B, 9, 9], 4) == blocks[:2]
    assert pool.match([*B, *C], 4) == []


def test_no_more_tokens_are_found_than_may_be_shared() -> None:
    pool = BlockPool(8, 2)
    blocks = known(pool, A, B)
    assert pool.match([*A, *B], 3) == blocks[:1]
    assert pool.match([*A, *B], 1) == []


def test_the_same_tokens_behind_another_beginning_are_another_block() -> None:  # D44
    pool = BlockPool(8, 2)
    one, other = known(pool, A, C), known(pool, B, C)
    assert pool.match([*A, *C], 4) == one
    assert pool.match([*B, *C], 4) == other


def test_what_is_known_already_keeps_its_block_and_the_twin_is_freed() -> None:
    pool = BlockPool(8, 2)
    first = known(pool, A)
    twin = known(pool, A, B)
    assert pool.match([*A, *B], 4) == [first[0], twin[1]]
    assert (pool.free, pool.cached) == (8, 2)


def test_the_longest_unused_gives_way_and_ends_before_beginnings() -> None:
    pool = BlockPool(4, 2)
    old, new = known(pool, A, B), known(pool, C)
    pool.allocate(2)  # one was free, one had to give way
    assert pool.match([*A, *B], 4) == old[:1]
    assert pool.match([*C], 2) == new
    pool.allocate(1)
    assert pool.match([*A], 2) == []


def test_what_was_found_and_held_does_not_give_way() -> None:
    pool = BlockPool(3, 2)
    shared = known(pool, A, B)
    pool.hold(shared)
    assert (pool.free, pool.unused(shared)) == (1, 0)
    pool.allocate(1)
    assert not pool.can_allocate(1)
    pool.release(shared)
    assert (pool.free, pool.cached) == (2, 2)


def test_a_block_with_two_holders_is_free_when_both_have_left() -> None:
    pool = BlockPool(3, 2)
    shared = known(pool, A)
    pool.hold(shared)
    pool.hold(shared)
    pool.release(shared)
    assert pool.free == 2
    pool.release(shared)
    assert pool.free == 3


def test_what_follows_a_block_that_gave_way_is_not_found() -> None:
    pool = BlockPool(3, 2)
    beginning = known(pool, A)
    mine = pool.allocate(2)
    entry = pool.register([*A, *B], mine, 0, 2, 0)  # A is known as another block
    assert entry == pool.entry_of([mine[1]])
    pool.allocate(1)  # the known A gives way
    assert beginning and pool.match([*A, *B], 4) == []
    pool.release(mine)
    assert pool.free == 2
