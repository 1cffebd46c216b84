from engine.decoder.answer import Answer, EndRules
from engine.decoder.tokenizer import ByteStream
from tests.decoder.fakes import EOS, LetterStream

LETTERS = [bytes([c]) for c in range(256)]


def answer(**rules: object) -> Answer:
    values: dict[str, object] = {"eos_ids": frozenset({EOS}), "max_tokens": 100, "stop": ()}
    return Answer(EndRules(**(values | rules)), LetterStream())  # type: ignore[arg-type]


def test_an_end_of_sequence_token_is_counted_but_not_shown() -> None:
    one = answer()
    delta = one.accept([0, 1, EOS, 2])
    assert (delta.text, delta.ids, delta.finish) == ("ab", (0, 1, EOS), "stop")


def test_the_token_limit_ends_inside_an_accepted_block() -> None:
    one = answer(max_tokens=2)
    assert one.accept([0, 1, 2]).ids == (0, 1)
    assert (one.text, one.finish) == ("ab", "length")


def test_a_stop_string_ends_at_the_token_that_completes_it() -> None:
    one = answer(stop=("bc",))
    assert one.accept([0, 1]).text == "a"
    delta = one.accept([2, 3])
    assert (delta.text, delta.ids, delta.finish) == ("", (2,), "stop")
    assert one.text == "a"


def test_text_held_for_a_stop_string_appears_when_the_answer_ends_otherwise() -> None:
    one = answer(stop=("bc",), max_tokens=2)
    assert one.accept([0, 1]).text == "ab"


def test_half_a_character_is_never_shown() -> None:
    one = Answer(EndRules(frozenset(), 100), ByteStream(LETTERS))
    assert [one.accept([byte]).text for byte in "é".encode()] == ["", "é"]


def test_a_character_cut_off_by_the_limit_is_shown_as_unknown() -> None:
    one = Answer(EndRules(frozenset(), 1), ByteStream(LETTERS))
    assert one.accept(list("é".encode())).text == "\ufffd"


def test_cancelling_shows_what_was_held_back() -> None:
    one = answer(stop=("bc",))
    one.accept([0, 1])
    assert (one.end("cancelled").text, one.text, one.finish) == ("b", "ab", "cancelled")
