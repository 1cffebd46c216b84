"""Which drafts fit which targets, on vocabularies small enough to read; case B01 of the public bug reports."""

from dataclasses import replace

import pytest

from export_tools.vocabulary import Vocabulary, first_difference, known_tokens

TOKENS = (b"<|endoftext|>", b"<|im_start|>", b"<|im_end|>", *(b"w%d" % at for at in range(3, 320)))
TARGET = Vocabulary(tokens=TOKENS, bos_id=1, eos_ids=(2,), probes=((5, 6), (7,)))


def test_a_vocabulary_fits_itself() -> None:
    assert first_difference(TARGET, replace(TARGET)) is None


def test_another_size_with_other_texts_is_named_by_its_first_token() -> None:
    """B01 (1)."""
    draft = replace(TARGET, tokens=(*TOKENS[:9], b" other", *TOKENS[10:256]))
    assert first_difference(TARGET, draft) == (
        "token 9 is ' other' in the draft and 'w9' in the target (256 tokens against 320)"
    )


def test_one_other_token_is_enough() -> None:
    """B01 (2)."""
    draft = replace(TARGET, tokens=(*TOKENS[:5], b"x", *TOKENS[6:]))
    assert first_difference(TARGET, draft) == "token 5 is 'x' in the draft and 'w5' in the target"


def test_padded_rows_are_no_difference() -> None:
    """B01 (3): 320 tokens on 320 and on 384 rows, by whatever the tokenizer says of the rows above."""
    padded = (*TOKENS, *(b"[PAD%d]" % at for at in range(320, 384)))
    for names in (TOKENS, (*TOKENS, *[None] * 64), padded):
        assert known_tokens(names, rows=384) == known_tokens(TOKENS, rows=320) == TOKENS


def test_names_beyond_the_rows_of_a_model_are_not_its_tokens() -> None:
    assert known_tokens((*TOKENS, b"<PRE>", b"<SUF>"), rows=320) == TOKENS


def test_a_token_named_like_the_padding_of_another_row_is_a_token() -> None:
    assert known_tokens((b"a", b"[PAD7]"), rows=2) == (b"a", b"[PAD7]")


@pytest.mark.parametrize("more", ["draft", "target"])
def test_a_token_that_one_side_does_not_have_is_a_difference(more: str) -> None:
    longer, shorter = replace(TARGET, tokens=(*TOKENS, b"more")), TARGET
    target, draft = (shorter, longer) if more == "draft" else (longer, shorter)
    words = "'more' in the draft and missing in" if more == "draft" else "missing in the draft and 'more' in"
    assert (found := first_difference(target, draft)) and found.startswith(f"token 320 is {words} the target (")


def test_bytes_that_are_no_text_are_shown_as_bytes() -> None:
    draft = replace(TARGET, tokens=(*TOKENS[:5], b"\xe6\x97", *TOKENS[6:]))
    assert (found := first_difference(TARGET, draft)) and r"b'\xe6\x97' in the draft" in found


def test_another_end_of_text_is_named() -> None:
    assert first_difference(TARGET, replace(TARGET, eos_ids=(0,))) == (
        "the end-of-text token is 0 '<|endoftext|>' in the draft and 2 '<|im_end|>' in the target"
    )


def test_a_longer_list_of_ends_is_no_difference() -> None:
    assert first_difference(TARGET, replace(TARGET, eos_ids=(2, 0))) is None


def test_another_beginning_of_text_is_named() -> None:
    assert first_difference(TARGET, replace(TARGET, bos_id=0)) == (
        "the beginning-of-text token is 0 '<|endoftext|>' in the draft and 1 '<|im_start|>' in the target"
    )


def test_what_one_side_does_not_know_is_no_difference() -> None:
    assert first_difference(TARGET, replace(TARGET, bos_id=None, eos_ids=())) is None


def test_a_special_token_beyond_the_vocabulary_is_still_named() -> None:
    assert first_difference(TARGET, replace(TARGET, eos_ids=(999,))) == (
        "the end-of-text token is 999 missing in the draft and 2 '<|im_end|>' in the target"
    )


def test_a_text_that_falls_into_other_tokens_is_shown() -> None:
    found = first_difference(TARGET, replace(TARGET, probes=((5, 6), (8,))))
    assert found and "is [8] in the draft and [7] in the target" in found
