import pytest

from engine.decoder.verification import Verdict, verify


def test_without_drafts_the_target_decides() -> None:
    assert verify([], [7]) == Verdict(tokens=(7,), accepted=0, checked=0, onward=True)


def test_all_drafts_hold_and_the_targets_next_token_comes_on_top() -> None:  # B06
    assert verify([1, 2, 3], [1, 2, 3, 4]) == Verdict(tokens=(1, 2, 3, 4), accepted=3, checked=3, onward=True)


def test_the_first_draft_fails_and_the_targets_token_takes_its_place() -> None:  # B17
    assert verify([9, 2, 3], [1, 2, 3, 4]) == Verdict(tokens=(1,), accepted=0, checked=1, onward=False)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_follows_the_first_draft_that_fails_is_void_even_where_it_agrees(at: int) -> None:
    drafts = [1, 2, 3]
    drafts[at] = 99
    verdict = verify(drafts, [1, 2, 3, 4])
    assert verdict == Verdict(tokens=(1, 2, 3)[: at + 1], accepted=at, checked=at + 1, onward=False)


def test_a_window_behind_the_row_stays_good_when_its_first_token_was_guessed_right() -> None:
    assert verify([1, 2, 3, 4], [1, 2, 3]) == Verdict(tokens=(1, 2, 3), accepted=3, checked=3, onward=True)


def test_a_window_behind_the_row_is_void_when_its_first_token_was_guessed_wrong() -> None:
    assert verify([1, 2, 9, 4], [1, 2, 3]) == Verdict(tokens=(1, 2, 3), accepted=2, checked=3, onward=False)


def test_a_row_without_drafts_of_its_own_confirms_a_window_behind_it() -> None:
    assert verify([1, 2], [1]) == Verdict(tokens=(1,), accepted=1, checked=1, onward=True)


@pytest.mark.parametrize(("drafts", "target"), [([], []), ([1], [1, 2, 3])])
def test_numbers_that_cannot_be_are_refused(drafts: list[int], target: list[int]) -> None:
    with pytest.raises(ValueError, match="target tokens"):
        verify(drafts, target)
