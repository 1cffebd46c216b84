from engine.decoder.lookup import LookupIndex


def propose(tokens: list[int], count: int, ahead: tuple[int, ...] = ()) -> tuple[int, ...]:
    index = LookupIndex()
    index.take(tokens)
    return index.propose(tokens, ahead, count)


def test_what_followed_the_same_three_tokens_is_proposed() -> None:
    assert propose([1, 2, 3, 4, 5, 6, 9, 1, 2, 3], 3) == (4, 5, 6)


def test_the_latest_occurrence_counts() -> None:
    assert propose([1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 3], 1) == (5,)


def test_a_longer_match_counts_more_than_a_later_one() -> None:
    assert propose([7, 1, 2, 3, 4, 0, 8, 1, 2, 3, 5, 0, 7, 1, 2, 3], 1) == (4,)


def test_two_equal_tokens_are_not_enough() -> None:
    assert propose([1, 2, 3, 9, 1, 2], 4) == ()


def test_a_text_that_repeats_itself_is_continued_past_its_end() -> None:
    assert propose([1, 2, 3, 1, 2, 3, 1, 2, 3], 7) == (1, 2, 3, 1, 2, 3, 1)


def test_what_is_assumed_behind_the_tokens_is_part_of_the_match_and_of_the_text() -> None:
    assert propose([1, 2, 3, 4, 5, 9, 1, 2], 2, ahead=(3,)) == (4, 5)
    assert propose([1, 2, 3, 1, 2, 3, 1], 5, ahead=(2, 3)) == (1, 2, 3, 1, 2)


def test_an_index_that_grows_with_the_answer_equals_one_made_at_once() -> None:
    text = [(7 * i * i) % 11 for i in range(200)]
    grown, whole = LookupIndex(), LookupIndex()
    whole.take(text)
    for end in range(1, len(text) + 1, 3):
        grown.take(text[:end])
    grown.take(text)
    assert grown.propose(text, (), 8) == whole.propose(text, (), 8)


def test_short_texts_have_nothing_to_propose() -> None:
    for length in range(4):
        assert propose([5] * length, 3) == ()
