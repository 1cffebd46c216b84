import random

import pytest

from engine.kv.blocks import BlockPool, blocks_for
from engine.kv.table import BlockTable

SIZE = 4


def filled(pool: BlockPool, tokens: list[int]) -> BlockTable:
    """The table of a sequence that shared what it could, and was then computed."""
    table = BlockTable()
    table.share(pool, pool.index.match(tokens, len(tokens)))
    assert table.grow(pool, len(tokens))
    table.register(pool, tokens, len(tokens))
    return table


def test_tokens_need_whole_blocks_and_none_where_there_are_none() -> None:
    assert [blocks_for(n, 8) for n in (0, 1, 8, 9)] == [0, 1, 1, 2]
    assert blocks_for(100, 0) == 0


def test_a_pool_gives_what_it_has_and_no_more() -> None:
    pool = BlockPool(3, SIZE)
    taken = pool.allocate(2)
    assert not pool.can_allocate(2)
    with pytest.raises(ValueError, match="2 blocks wanted, 1 available"):
        pool.allocate(2)
    pool.release(taken)
    assert pool.free == 3


def test_unknown_blocks_are_free_when_released_and_known_ones_are_kept() -> None:
    pool = BlockPool(8, SIZE)
    table = filled(pool, list(range(10)))
    table.clear(pool)
    assert (pool.free, pool.cached, pool.held) == (6, 2, 0)
    assert len(pool.index.match(list(range(10)), 10)) == 2


def test_a_block_that_two_hold_is_freed_by_the_second() -> None:
    pool = BlockPool(8, SIZE)
    one, two = filled(pool, list(range(8))), filled(pool, list(range(8)))
    assert one.blocks == two.blocks
    assert pool.holders(one.blocks[0]) == 2
    one.clear(pool)
    assert (pool.held, pool.cached) == (2, 0)
    two.clear(pool)
    assert (pool.held, pool.cached) == (0, 2)


def test_a_block_that_nobody_holds_cannot_be_released() -> None:
    with pytest.raises(KeyError):
        BlockPool(2, SIZE).release([0])


def test_the_longest_unused_goes_first_and_its_end_before_its_beginning() -> None:
    pool = BlockPool(4, SIZE)
    old, young = [1] * 8, [2] * 8
    filled(pool, old).clear(pool)
    filled(pool, young).clear(pool)
    pool.allocate(1)
    assert [len(pool.index.match(tokens, 8)) for tokens in (old, young)] == [1, 2]
    pool.allocate(2)
    assert [len(pool.index.match(tokens, 8)) for tokens in (old, young)] == [0, 1]


def test_use_makes_a_block_young_again() -> None:
    pool = BlockPool(4, SIZE)
    for tokens in ([1] * 8, [2] * 8, [1] * 8):
        filled(pool, tokens).clear(pool)
    pool.allocate(2)
    assert [len(pool.index.match([n] * 8, 8)) for n in (1, 2)] == [2, 0]


def test_what_is_about_to_be_shared_does_not_count_as_room() -> None:
    pool = BlockPool(4, SIZE)
    filled(pool, [1] * 8).clear(pool)
    shared = [place.block for place in pool.index.match([1] * 8, 8)]
    assert pool.can_allocate(4)
    assert not pool.can_allocate(3, beside=shared)
    assert pool.can_allocate(2, beside=shared)


def test_a_twin_is_swapped_for_the_known_block_and_freed() -> None:
    pool = BlockPool(8, SIZE)
    one, two = BlockTable(), BlockTable()
    for table in (one, two):
        table.grow(pool, 8)  # both are computed at the same time
    one.register(pool, [5] * 8, 8)
    two.register(pool, [5] * 8, 8)
    assert one.blocks == two.blocks
    assert pool.free == 6


def test_a_table_grows_by_whole_need_or_not_at_all() -> None:
    pool, table = BlockPool(3, SIZE), BlockTable()
    assert table.grow(pool, 5)
    assert not table.grow(pool, 17)
    assert len(table.blocks) == 2
    assert table.grow(pool, 12)


def test_a_cut_gives_known_blocks_up_from_the_one_that_is_to_be_written() -> None:
    pool = BlockPool(8, SIZE)
    one, two = filled(pool, list(range(12))), filled(pool, list(range(12)))
    assert two.cut(pool, 12) == 12
    assert two.cut(pool, 6) == 4
    assert two.blocks == one.blocks[:1]
    assert two.grow(pool, 12)
    assert not set(two.blocks[1:]) & set(one.blocks)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_every_block_is_in_one_place_and_finds_its_own_tokens(seed: int) -> None:
    """Random sequences over two tokens, so that many begin alike; `contents` plays the device."""
    rng = random.Random(seed)
    pool = BlockPool(12, SIZE)
    contents: dict[int, list[int]] = {}
    tables: list[tuple[BlockTable, list[int]]] = []
    for _ in range(300):
        if tables and rng.random() < 0.5:
            table, _ = tables.pop(rng.randrange(len(tables)))
            table.clear(pool)
        else:
            tokens, table = [rng.randint(0, 1) for _ in range(rng.randint(1, 20))], BlockTable()
            shared = table.share(pool, pool.index.match(tokens, len(tokens) - 2))
            assert [token for block in table.blocks for token in contents[block]] == tokens[:shared]
            if not table.grow(pool, len(tokens)):
                table.clear(pool)
                continue
            for at in range(shared // SIZE, len(table.blocks)):
                assert table.blocks[at] not in pool.index
                contents[table.blocks[at]] = tokens[at * SIZE : (at + 1) * SIZE]
            table.register(pool, tokens, rng.randint(shared, len(tokens)))
            tables.append((table, tokens))
        held = [block for table, _ in tables for block in table.blocks]
        assert pool.free + pool.cached + pool.held == 12
        assert all(pool.holders(block) == held.count(block) for block in range(12))
    for table, _ in tables:
        table.clear(pool)
    assert pool.free + pool.cached == 12
