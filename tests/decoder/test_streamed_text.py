"""Text that was reported lost, doubled or broken between tokens: streamed == whole == all tokens decoded at once."""

from collections.abc import Sequence
from functools import partial

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine.contract.ids import RequestId
from engine.contract.prompt import TokenEvent, decode_event, encode_event
from engine.decoder.answer import Answer, EndRules
from engine.decoder.tokenizer import ByteStream, TextStream, WindowStream

END = b"<end>"  # a piece that ends the answer
FOX = "\U0001f98a".encode()


def joined(pieces: Sequence[bytes], ids: Sequence[int]) -> str:
    return b"".join(pieces[i] for i in ids).decode(errors="replace")


def streams(pieces: Sequence[bytes]) -> tuple[TextStream, ...]:
    return ByteStream(pieces), WindowStream(partial(joined, pieces))


def told(*pieces: bytes, stop: tuple[str, ...] = (), max_tokens: int = 50) -> tuple[str, str | None, int]:
    """Text, reason to end and tokens of an answer made of these pieces: the same for every stream and every delivery.

    One token at a time as without drafts, all at once as behind accepted drafts, in pairs as between the two.
    """
    found: set[tuple[str, str | None, int]] = set()
    for size in (1, 2, len(pieces)):
        for stream in streams([*pieces]):
            rules = EndRules(frozenset(i for i, piece in enumerate(pieces) if piece == END), max_tokens, stop)
            one, shown = Answer(rules, stream), ""
            for at in range(0, len(pieces), size):
                if not one.finish:
                    shown += one.accept(range(at, min(at + size, len(pieces)))).text
            if not one.finish:
                shown += one.end("cancelled").text
            assert shown == one.text
            found.add((one.text, one.finish, len(one.ids)))
    [only] = found
    return only


@pytest.mark.parametrize("cuts", [(2,), (1, 2, 3), (3,), (1,)])
def test_a_character_spread_over_tokens_is_shown_once_and_whole(cuts: tuple[int, ...]) -> None:
    """A01."""
    parts = [FOX[a:b] for a, b in zip((0, *cuts), (*cuts, 4), strict=True)]
    assert told(*parts, b" ok", END) == ("\U0001f98a ok", "stop", len(parts) + 2)
    for stream in streams(parts):
        assert [stream.feed([i]) for i in range(len(parts))] == [""] * (len(parts) - 1) + ["\U0001f98a"]


def test_bytes_that_are_no_text_are_shown_as_unknown_and_what_follows_is_whole() -> None:
    """A04."""
    text, finish, _ = told(b"a", b"\xe3", b"'", b"\xff", b"b", max_tokens=5)
    assert (text, finish) == ("a\ufffd'\ufffdb", "length")
    event = TokenEvent(request=RequestId("r"), seq=0, text=text, ids=(0, 1, 2, 3, 4))
    assert decode_event(encode_event(event)) == event


def test_a_stop_string_spread_over_tokens_ends_the_text_in_front_of_it() -> None:
    """A06."""
    letters = [f" {letter}".encode() for letter in "LMNOPQRSTUVW"]
    assert told(*letters, stop=("N O P",)) == (" L M ", "stop", 5)


def test_text_in_front_of_a_stop_string_in_the_same_token_is_shown() -> None:
    """A07."""
    assert told(b"?\n", b"more", stop=("\n",)) == ("?", "stop", 1)


def test_what_was_held_for_a_stop_string_is_shown_whatever_ends_the_answer() -> None:
    """A09."""
    assert told(b"go", b" to", b" END", END, stop=("END\nZZZZ",)) == ("go to END", "stop", 4)
    assert told(b"go", b" to", b" END", stop=("END\nZZZZ",), max_tokens=3) == ("go to END", "length", 3)


WORDS = ("Ada", "is", "the", "pilot", "of", "this", "ship")


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    """As Llama's: a space is a mark before a word, and none is shown at the beginning of a text."""
    vocabulary = {piece: at for at, piece in enumerate(["<unk>", "<s>", "▁", *(f"▁{word}" for word in WORDS), "s"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens(["<s>"])
    return backend


def test_words_keep_their_spaces(sentencepiece: Tokenizer) -> None:
    """A03."""
    text = " ".join(WORDS)
    ids = sentencepiece.encode(text, add_special_tokens=False).ids
    stream = WindowStream(sentencepiece.decode)
    assert "".join(stream.feed([token]) for token in ids) + stream.flush() == text == sentencepiece.decode(ids)


@pytest.mark.parametrize("cut", range(1, len(WORDS)))
def test_an_answer_goes_on_where_its_prompt_has_ended(sentencepiece: Tokenizer, cut: int) -> None:
    """A03: a prompt without a space at its end, whose answer begins with one."""
    ids = sentencepiece.encode(" ".join(WORDS), add_special_tokens=False).ids
    stream = WindowStream(sentencepiece.decode, ids[:cut])
    answer = "".join(stream.feed([token]) for token in ids[cut:]) + stream.flush()
    assert sentencepiece.decode(ids[:cut]) + answer == " ".join(WORDS)


def test_an_answer_behind_a_special_token_begins_without_a_space(sentencepiece: Tokenizer) -> None:
    """A03: as behind a chat template."""
    ids = sentencepiece.encode("Ada is", add_special_tokens=False).ids
    stream = WindowStream(sentencepiece.decode, [1])
    assert stream.feed(ids) == "Ada is"


def test_special_tokens_are_never_shown() -> None:
    """A18: at the end of an answer and in the middle of one."""
    backend = Tokenizer(models.WordLevel({"hi": 0, "<unk>": 1, "ho": 2}, unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken("<|im_end|>", special=True), AddedToken("<|im_start|>", special=True)])
    end, start = backend.encode("<|im_end|><|im_start|>").ids
    for size in (1, 4):
        ids = [0, start, 2, end]
        one, events = Answer(EndRules(frozenset({end}), 10), WindowStream(backend.decode)), []
        for at in range(0, 4, size):
            events.append(one.accept(ids[at : at + size]))
        assert ("".join(event.text for event in events), events[-1].finish) == ("hiho", "stop")
        assert one.text == "hiho"
