from hypothesis import given
from hypothesis import strategies as st

from engine.decoder.stopping import StopStrings


def shown(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher, text = StopStrings(stops), ""
    for piece in pieces:
        new, stopped = matcher.feed(piece)
        text += new
        if stopped:
            return text, True
    return text + matcher.flush(), False


def test_text_before_the_stop_string_is_shown_and_the_rest_is_not() -> None:
    assert shown(["END"], ["one E", "ND two"]) == ("one ", True)


def test_a_beginning_that_does_not_become_a_stop_string_is_shown_later() -> None:
    matcher = StopStrings(["END"])
    assert matcher.feed("the E") == ("the ", False)
    assert matcher.feed("asy") == ("Easy", False)


def test_the_first_of_several_stop_strings_counts() -> None:
    assert shown(["b", "a"], ["xxab"]) == ("xx", True)


def test_what_is_held_back_at_the_end_is_shown() -> None:
    assert shown(["END"], ["the EN"]) == ("the EN", False)


@given(st.lists(st.text("ab", min_size=1, max_size=3), max_size=12), st.lists(st.text("ab", min_size=1), max_size=3))
def test_pieces_make_no_difference(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    ends = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
    text, stopped = shown(stops, list(whole))
    assert stopped == bool(ends)
    if ends:  # one character at a time, the stop string that completes first ends the text
        first_end = min(end for end, _ in ends)
        assert text == whole[: min(at for end, at in ends if end == first_end)]
    else:
        assert text == whole
