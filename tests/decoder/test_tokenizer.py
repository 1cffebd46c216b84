from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract.manifest import load_manifest
from engine.decoder.tokenizer import (
    ByteStream,
    HuggingFaceTokenizer,
    OpenVinoTokenizer,
    Tokenizer,
    WindowStream,
    load_tokenizer,
)
from engine.local.model import DRAFT
from tests.conftest import Shards

PIECES = [bytes([i]) for i in range(256)]


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode(errors="replace")


@given(st.text(max_size=30))
def test_both_streams_give_whole_characters_that_add_up(text: str) -> None:
    for stream in (ByteStream(PIECES), WindowStream(decode)):
        shown = [stream.feed([byte]) for byte in text.encode()]
        assert "".join(shown) + stream.flush() == text
        assert all(text.startswith("".join(shown[:i])) for i in range(len(shown)))


@pytest.fixture(scope="module")
def tokenizer(shards: Shards) -> Tokenizer:
    return load_tokenizer(shards(1), load_manifest(shards(1)))


@pytest.mark.model
def test_the_demo_tokenizer_knows_its_words(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("Hello there", special=False) == [19556, 665]


@pytest.mark.model
@pytest.mark.parametrize("text", ["naïve café – ½ €", "日本語 🙂 👩‍👩‍👧", "  two  spaces\n\n\ttab", "x" * 300])
def test_text_comes_back_token_by_token(tokenizer: Tokenizer, text: str) -> None:
    ids, stream = tokenizer.encode(text, special=False), tokenizer.stream()
    assert "".join(stream.feed([token]) for token in ids) + stream.flush() == text == tokenizer.decode(ids)


@pytest.mark.model
def test_the_chat_template_is_applied(tokenizer: Tokenizer) -> None:
    text = tokenizer.chat([{"role": "user", "content": "Hi"}])
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.model
def test_special_tokens_are_not_shown(tokenizer: Tokenizer, tmp_path: Path) -> None:
    ids = tokenizer.encode("<|im_start|>user", special=False)
    assert ids[0] == 1
    assert tokenizer.stream().feed(ids) == "user"


@pytest.mark.model
def test_the_same_vocabulary_is_read_from_either_kind(tokenizer: Tokenizer) -> None:
    """Also where a token is part of a character, so that no text shows it."""
    other = HuggingFaceTokenizer(DRAFT, "")
    assert isinstance(tokenizer, OpenVinoTokenizer)
    ours, theirs = tokenizer.vocabulary(), other.vocabulary()
    assert len(ours) == 49152
    assert ours == theirs[:49152]
    assert theirs[49152] == "▁<PRE>".encode()  # names of tokens that the model has no rows for


def test_a_vocabulary_that_is_not_of_bytes_is_read_as_it_is_written(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415
    from tokenizers import decoders, models  # noqa: PLC0415

    backend = Backend(models.BPE(vocab={"<unk>": 0, "▁Ġ": 1, "é": 2, "<0x0A>": 4}, merges=[], unk_token="<unk>"))
    backend.decoder = decoders.ByteFallback()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    pieces = HuggingFaceTokenizer(tmp_path, "").vocabulary()
    assert pieces == [b"<unk>", "▁Ġ".encode(), "é".encode(), None, b"<0x0A>"]


def test_a_sentencepiece_vocabulary_gives_the_bytes_of_its_tokens(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415
    from tokenizers import decoders, models, normalizers  # noqa: PLC0415

    bytes_of_any = {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **bytes_of_any, "▁": 259, "H": 260, "▁H": 261}
    model = models.BPE(vocab=vocabulary, merges=[("▁", "H")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = Backend(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": "<unk>"}'
    )
    pieces = HuggingFaceTokenizer(tmp_path, "").text_bytes()
    assert pieces is not None
    assert [pieces[token] for token in (0, 2, 3 + 10, 259, 261)] == [b"", b"", b"\n", b" ", b" H"]


def test_a_vocabulary_whose_texts_are_not_made_of_its_tokens_gives_no_bytes(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415
    from tokenizers import decoders, models, pre_tokenizers  # noqa: PLC0415

    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert HuggingFaceTokenizer(tmp_path, "").text_bytes() is None
