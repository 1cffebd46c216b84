# pyright: basic
"""Text to token ids and back: Hugging Face tokenizers, or OpenVINO's for models that came as GGUF.

Either way text is emitted as it becomes certain: a character whose bytes are spread over several tokens appears once.
"""

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

from engine.contract.errors import ManifestError
from engine.contract.manifest import Manifest

REPLACEMENT: Final = "\ufffd"
_BYTE_PIECE: Final = re.compile(rb"<0x([0-9A-F]{2})>")  # of SentencePiece
_PROBES: Final = ("Hello, world! 12345", "naïve café – ½ €", "日本語 🙂 ok\n\n  indented\ttab")


class TextStream(Protocol):
    """Turns the ids of one answer into text, piece by piece."""

    def feed(self, ids: Sequence[int]) -> str:
        """Text that these ids make certain; may be empty."""
        ...

    def flush(self) -> str:
        """The rest, with U+FFFD for an unfinished character."""
        ...


class Tokenizer(Protocol):
    """What the decoder needs of a tokenizer."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids; `special` adds what the model wants around raw text (a BOS, say)."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        ...

    @property
    def chat_template(self) -> str:
        """Jinja; "" where there is none."""
        ...

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Messages through the model's chat template, ready for the answer. Raises ValueError."""
        ...

    def stream(self, before: Sequence[int] = ()) -> TextStream:
        """A fresh stream for one answer to a prompt that ends with the tokens `before`."""
        ...

    def pieces(self) -> Sequence[bytes]:
        """Bytes that each token adds to a text, by id, of special ones their name. Slow the first time."""
        ...


def load_tokenizer(folder: Path, manifest: Manifest) -> "HuggingFaceTokenizer | OpenVinoTokenizer":
    """The tokenizer of a split. Raises ManifestError when its files do not load."""
    kinds: dict[str, Callable[[Path, str], HuggingFaceTokenizer | OpenVinoTokenizer]] = {
        "huggingface": HuggingFaceTokenizer,
        "openvino": OpenVinoTokenizer,
    }
    try:
        return kinds[manifest.tokenizer_kind](folder / "tokenizer", manifest.chat_template)
    except Exception as error:  # whatever a library raises about its own files
        raise ManifestError(f"the tokenizer in {folder / 'tokenizer'} does not load: {error}") from error


class WindowStream:
    """Decodes a growing window twice and emits the difference: right for every tokenizer, two decodes a piece."""

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        """`before`: the end of the prompt, without which some tokenizers drop an answer's first space."""
        self._decode = decode
        self._ids = list(before)  # from the last emitted piece on: tokenizers look at what comes before
        self._shown = len(self._ids)  # ids of `_ids` whose text is out

    def feed(self, ids: Sequence[int]) -> str:
        """See TextStream."""
        self._ids.extend(ids)
        before, text = self._decode(self._ids[: self._shown]), self._decode(self._ids)
        if text.endswith(REPLACEMENT) or len(text) <= len(before):
            return ""
        self._ids, self._shown = self._ids[self._shown :], len(self._ids) - self._shown
        return text[len(before) :]

    def flush(self) -> str:
        """See TextStream."""
        before, text = self._decode(self._ids[: self._shown]), self._decode(self._ids)
        self._ids, self._shown = [], 0
        return text[len(before) :]


class ByteStream:
    """Concatenates the bytes of tokens: for vocabularies where a text is exactly that."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Sequence[int]) -> str:
        """See TextStream."""
        return self._utf8.decode(b"".join(self._pieces[i] for i in ids))

    def flush(self) -> str:
        """See TextStream."""
        return self._utf8.decode(b"", final=True)


class HuggingFaceTokenizer:
    """Over transformers' AutoTokenizer on local files."""

    def __init__(self, folder: Path, chat_template: str) -> None:
        from transformers import AutoTokenizer, logging  # noqa: PLC0415  seconds to import, needed by one process only

        logging.set_verbosity_error()
        self._tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        if chat_template:
            self._tokenizer.chat_template = chat_template
        self.pieces = cache(lambda: _shown_by(self))

    @property
    def chat_template(self) -> str:
        """See Tokenizer."""
        template = self._tokenizer.chat_template
        return template if isinstance(template, str) else ""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """See Tokenizer."""
        return self._tokenizer.encode(text, add_special_tokens=special)

    def decode(self, ids: Sequence[int]) -> str:
        """See Tokenizer."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """See Tokenizer."""
        if not self._tokenizer.chat_template:
            raise ValueError("this model has no chat template: send 'prompt' instead of 'messages'")
        try:
            return self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=True,
            )
        except Exception as error:  # templates raise what they like
            raise ValueError(f"the chat template refuses these messages: {error}") from error

    def stream(self, before: Sequence[int] = ()) -> TextStream:
        """See Tokenizer."""
        return WindowStream(self.decode, before)

    def vocabulary(self) -> list[bytes | None]:
        """Bytes of every token by id, special ones by name; None for ids that no token has."""
        vocabulary, added = self._tokenizer.get_vocab(), self._tokenizer.get_added_vocab()
        if not self._is_byte_level():
            return _by_id({piece.encode(): token for piece, token in vocabulary.items()})
        alphabet = _byte_alphabet()
        return _by_id({_piece_bytes(p, {} if p in added else alphabet): token for p, token in vocabulary.items()})

    def text_bytes(self) -> list[bytes] | None:
        """Bytes that each token adds to a text, by id, empty for special ones; None when texts are not made of those.

        A space that the tokenizer drops at the beginning of a text is among them.
        """
        added, special = self._tokenizer.added_tokens_decoder, set(self._tokenizer.all_special_ids)
        special |= {token for token, entry in added.items() if entry.special}
        whole = self._is_byte_level()
        pieces = [
            b"" if piece is None or token in special else piece if whole or token in added else _without_mark(piece)
            for token, piece in enumerate(self.vocabulary())
        ]
        return pieces if _spells(self, pieces, dropped=b"" if whole else b" ") else None

    def _is_byte_level(self) -> bool:
        """Whether its vocabulary is written in characters that stand for bytes."""
        decoder: Any = getattr(getattr(self._tokenizer, "backend_tokenizer", None), "decoder", None)
        return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()


class OpenVinoTokenizer:
    """Over openvino_genai.Tokenizer. Its decode is an inference, so streams concatenate bytes where that is right."""

    def __init__(self, folder: Path, chat_template: str) -> None:
        from openvino_genai import Tokenizer as GenAITokenizer  # noqa: PLC0415  only for models that need it

        self._tokenizer = GenAITokenizer(str(folder))
        if chat_template:
            self._tokenizer.set_chat_template(chat_template)
        self.chat_template = chat_template
        self._pieces = self._byte_pieces()
        self.pieces = cache(lambda: _shown_by(self))

    def encode(self, text: str, *, special: bool) -> list[int]:
        """See Tokenizer."""
        return self._tokenizer.encode(text, add_special_tokens=special).input_ids.data[0].tolist()

    def decode(self, ids: Sequence[int]) -> str:
        """See Tokenizer."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True) if ids else ""

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """See Tokenizer."""
        if not self.chat_template:
            raise ValueError("this model has no chat template: send 'prompt' instead of 'messages'")
        try:
            return self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                add_generation_prompt=True,
                tools=[dict(tool) for tool in tools] or None,
            )
        except RuntimeError as error:
            raise ValueError(f"the chat template refuses these messages: {str(error).splitlines()[-1]}") from error

    def stream(self, before: Sequence[int] = ()) -> TextStream:
        """See Tokenizer."""
        return WindowStream(self.decode, before) if self._pieces is None else ByteStream(self._pieces)

    def vocabulary(self) -> list[bytes | None]:
        """Bytes of every token by id, special ones by name; None for ids that no token has."""
        return _by_id(self._tokenizer.get_vocab())

    def text_bytes(self) -> list[bytes] | None:
        """See HuggingFaceTokenizer."""
        if self._pieces is not None:
            return self._pieces
        pieces = [_without_mark(piece) for piece in self._shown_pieces()]
        return pieces if _spells(self, pieces, dropped=b" ") else None

    def _byte_pieces(self) -> list[bytes] | None:
        """Bytes of every token, empty for special ones; None when texts are not their concatenation."""
        pieces = self._shown_pieces()
        return pieces if _spells(self, pieces) else None

    def _shown_pieces(self) -> list[bytes]:
        """Every token as the vocabulary writes it, empty for special ones."""
        return [
            b"" if piece is None or (_looks_special(piece) and not self.decode([token])) else piece
            for token, piece in enumerate(self.vocabulary())
        ]


def _looks_special(piece: bytes) -> bool:
    return piece.startswith((b"<", b"[")) and piece.endswith((b">", b"]"))


def _without_mark(piece: bytes) -> bytes:
    """What a piece of a SentencePiece vocabulary stands for."""
    if found := _BYTE_PIECE.fullmatch(piece):
        return bytes.fromhex(found[1].decode())
    return piece.replace("\u2581".encode(), b" ")


def _shown_by(tokenizer: "HuggingFaceTokenizer | OpenVinoTokenizer") -> list[bytes]:
    """See Tokenizer.pieces."""
    names = [b"" if name is None else name for name in tokenizer.vocabulary()]
    added = tokenizer.text_bytes() or [_without_mark(name) for name in names]
    return [piece or name for piece, name in zip(added, names, strict=True)]


def _spells(tokenizer: Tokenizer, pieces: Sequence[bytes], dropped: bytes = b"") -> bool:
    """Whether texts are the concatenation of their tokens' pieces; `dropped` may be missing at their beginning."""
    for probe in _PROBES:
        ids = tokenizer.encode(probe, special=False)
        spelled = b"".join(pieces[token] for token in ids)
        if tokenizer.decode(ids).encode() not in (spelled, spelled.removeprefix(dropped)):
            return False
    return True


def _by_id(vocabulary: Mapping[bytes, int]) -> list[bytes | None]:
    pieces: list[bytes | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for piece, token in vocabulary.items():
        pieces[token] = piece
    return pieces


def _piece_bytes(piece: str, alphabet: Mapping[str, int]) -> bytes:
    """The bytes that a piece stands for; one that is not all in the alphabet stands for itself."""
    if all(character in alphabet for character in piece):
        return bytes(alphabet[character] for character in piece)
    return piece.encode()


def _byte_alphabet() -> dict[str, int]:
    """The characters in which byte-level vocabularies write bytes: themselves where they print, else from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(0x100 + at): byte for at, byte in enumerate(hidden)}
