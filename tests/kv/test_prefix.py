import pytest

from engine.kv.prefix import ROOT, PrefixIndex


def index_with(*beginnings: list[int]) -> PrefixIndex:
    """Blocks of two tokens, numbered in order."""
    index = PrefixIndex(2)
    for tokens in beginnings:
        before = ROOT
        for at in range(0, len(tokens), 2):
            before = index.add(before, tokens[at : at + 2], len(index)).entry
    return index


def blocks(index: PrefixIndex, tokens: list[int], most: int = 100) -> list[int]:
    return [place.block for place in index.match(tokens, most)]


def test_the_longest_known_beginning_is_found() -> None:
    index = index_with([1, 2, 3, 4, 5, 6])
    assert blocks(index, [1, 2, 3, 4, 9, 9]) == [0, 1]
    assert blocks(index, [1, 2, 3]) == [0]
    assert blocks(index, [9, 2, 3, 4]) == []


def test_no_more_tokens_are_found_than_wanted() -> None:
    index = index_with([1, 2, 3, 4])
    assert [len(blocks(index, [1, 2, 3, 4], most)) for most in (-1, 1, 2, 3, 4)] == [0, 0, 1, 1, 2]


def test_the_same_tokens_behind_another_beginning_are_another_block() -> None:
    index = index_with([1, 2, 7, 7], [3, 4, 7, 7])
    assert blocks(index, [1, 2, 7, 7]) == [0, 1]
    assert blocks(index, [3, 4, 7, 7]) == [2, 3]
    assert blocks(index, [7, 7]) == []


class Colliding(int):
    """A token whose hash is everybody's."""

    def __hash__(self) -> int:
        return 1


def test_equal_hashes_do_not_make_equal_tokens() -> None:  # D44
    index = PrefixIndex(2)
    index.add(ROOT, [Colliding(1), Colliding(2)], 0)
    assert not index.match([Colliding(2), Colliding(1)], 2)
    assert index.match([Colliding(1), Colliding(2)], 2)


def test_a_second_block_with_the_same_is_pointed_to_the_first() -> None:
    index = index_with([1, 2])
    assert index.add(ROOT, [1, 2], 9).block == 0
    assert 9 not in index


def test_what_followed_a_dropped_block_is_not_found_even_when_its_tokens_come_back() -> None:
    index = index_with([1, 2, 3, 4])
    index.drop(0)
    assert blocks(index, [1, 2, 3, 4]) == []
    index.add(ROOT, [1, 2], 7)
    assert blocks(index, [1, 2, 3, 4]) == [7]


@pytest.mark.parametrize(("tokens", "block"), [([1], 5), ([1, 2, 3], 5), ([3, 4], 0)])
def test_a_block_that_is_not_full_or_known_otherwise_is_refused(tokens: list[int], block: int) -> None:
    with pytest.raises(ValueError, match="cannot be known"):
        index_with([1, 2]).add(ROOT, tokens, block)


def test_without_blocks_nothing_is_found() -> None:
    assert PrefixIndex(0).match([1, 2, 3], 3) == []
