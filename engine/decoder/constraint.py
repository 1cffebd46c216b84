"""Answers that keep to a grammar: which tokens may come next. Over llguidance; no I/O.

White space in JSON is optional and, between two parts of a document, at most one space, or one line break and an
indentation of up to 32: a model can lay a document out, but not fill its answer with blanks.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Protocol, assert_never

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.numpy import fill_next_token_bitmask

from engine.contract.errors import ErrorCode, PromptError
from engine.contract.response_format import Choice, JsonObject, JsonSchema, Regex, ResponseFormat
from engine.decoder.tools import CallFormat, call_grammar

WORD_BITS: Final = 32
CACHED_GRAMMARS: Final = 64
WHITE_SPACE: Final = r" |\n[ \t]{0,32}"
_LIMITS: Final = LLParserLimits(verbose_errors=False)  # messages go to clients: without the state of the parser
_QUIET: Final = 0
Masks = npt.NDArray[np.uint32]
Wanted = ResponseFormat | CallFormat


class SpelledTokenizer(Protocol):
    """What a compiler needs of a tokenizer."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids."""
        ...

    def text_bytes(self) -> Sequence[bytes] | None:
        """Bytes that each token adds to a text, by id, empty for special ones; None when texts are not made of those.

        A space that the tokenizer drops at the beginning of a text is among them.
        """
        ...


class Constraint:
    """How far one answer has come in its grammar, and what may follow. Not thread-safe.

    Where the grammar has come to its end exactly the end-of-sequence tokens may follow; where it may end, they too.
    Text that is certain to come is spelled as the tokenizer would: of tokens that begin it only that one is allowed.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: int, eos_ids: frozenset[int]) -> None:
        self._matcher, self._vocabulary, self._eos_ids = matcher, vocabulary, eos_ids

    @property
    def finished(self) -> bool:
        """Whether nothing may follow but the end of the sequence."""
        return self._matcher.is_stopped()

    @property
    def error(self) -> str:
        """Why the grammar was given up, for it became too complex at this answer; "" while it holds.

        Then it is finished: nothing but the end of the sequence is allowed.
        """
        return next(iter(self._matcher.get_error().splitlines()), "")

    def masks(self, drafts: Sequence[int]) -> Masks:
        """Which tokens may come after each of the drafts, uint32 (len(drafts) + 1, words); changes no state.

        Bit t % 32 of word t // 32 is set when token t may come. Behind a draft that is not allowed, or that ends the
        sequence, rows repeat the last valid one.
        """
        rows = np.empty((len(drafts) + 1, words_for(self._vocabulary)), np.uint32)
        matcher = self._matcher
        for at, draft in enumerate(drafts):
            _fill(matcher, rows, at)
            if draft in self._eos_ids or not _allows(rows[at], draft):
                rows[at + 1 :] = rows[at]
                return rows
            matcher = matcher.deep_copy() if matcher is self._matcher else matcher  # microseconds
            matcher.consume_token(draft)
        _fill(matcher, rows, len(drafts))
        return rows

    def forced(self, limit: int) -> tuple[int, ...]:
        """Up to `limit` tokens that are certain to come next, spelled as the tokenizer would; often none."""
        return () if self.finished else tuple(self._matcher.compute_ff_tokens()[:limit])

    def filter(self, drafts: Sequence[int]) -> tuple[int, ...]:
        """The longest beginning of `drafts` that is allowed."""
        if self.finished:
            return tuple(drafts[:1]) if drafts and drafts[0] in self._eos_ids else ()
        known = next((at for at, draft in enumerate(drafts) if not 0 <= draft < self._vocabulary), len(drafts))
        return tuple(drafts[: self._matcher.validate_tokens(list(drafts[:known]))])

    def accept(self, tokens: Sequence[int]) -> None:
        """Go on by tokens that are certain. Raises ValueError for one that is not allowed."""
        for token in tokens:
            if self.finished and token in self._eos_ids:
                continue
            if not self.filter([token]) or not self._matcher.consume_token(token):
                self.masks([])  # meets what made masks behind drafts give up, if that was it
                if self.error:
                    return
                raise ValueError(f"token {token} is not allowed here")


class ConstraintCompiler:
    """Makes constraints for the answers of one model. Thread-safe."""

    def __init__(self, tokenizer: SpelledTokenizer, *, vocabulary: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer, self._vocabulary, self._eos_ids = tokenizer, vocabulary, tuple(eos_ids)
        self._spelled = self._spell()
        self._compiled = lru_cache(CACHED_GRAMMARS)(self._compile)

    def constraint(self, wanted: Wanted) -> Constraint:
        """At the beginning of an answer of that format.

        Raises PromptError: a schema or an expression that cannot be used, a tokenizer whose tokens have no texts.
        """
        try:
            matcher = self._compiled(wanted)
        except ValueError as error:
            field = "tools" if isinstance(wanted, CallFormat) else "response_format"
            message = f"{field!r} cannot be kept to: {error}"
            raise PromptError(ErrorCode.INVALID_PROMPT, message, field=field) from error
        return Constraint(matcher.deep_copy(), self._vocabulary, frozenset(self._eos_ids))

    def _spell(self) -> LLTokenizer | None:
        pieces = self._tokenizer.text_bytes()
        if pieces is None or not self._eos_ids:
            return None
        spelled = [*pieces, *[b""] * self._vocabulary][: self._vocabulary]
        for token in self._eos_ids:
            spelled[token] = b""
        spelling = _Spelling(self._tokenizer, spelled, self._eos_ids)
        library = LLTokenizer(TokenizerWrapper(spelling), eos_token=list(self._eos_ids))
        spelling.greedily = library.greedy_tokenize
        return library

    def _compile(self, wanted: Wanted) -> LLMatcher:
        """Raises ValueError: what cannot be kept to, and what is nested too deeply."""
        if self._spelled is None:
            raise ValueError("this model's tokenizer does not say which text a token stands for, or how an answer ends")
        matcher = LLMatcher(self._spelled, grammar_of(wanted), log_level=_QUIET, limits=_LIMITS)
        if matcher.is_error():
            raise ValueError(_reason(matcher.get_error()))
        return matcher


class _Spelling:
    """A tokenizer in the form that TokenizerWrapper wants; it is asked how text that is certain to come is spelled."""

    bos_token_id = None

    def __init__(self, tokenizer: SpelledTokenizer, tokens: list[bytes], eos_ids: tuple[int, ...]) -> None:
        self._tokenizer, self.tokens = tokenizer, tokens
        self.special_token_ids, self.eos_token_id = eos_ids, eos_ids[0]
        self.greedily: Callable[[str], list[int]] = lambda _: []  # until the library knows the tokens

    def __call__(self, text: str | bytes) -> list[int]:
        wanted, text = (text, text.decode()) if isinstance(text, bytes) else (text.encode(), text)
        for before in ("", "\n"):  # at the beginning of a text SentencePiece adds a space
            ids = self._tokenizer.encode(before + text, special=False)
            for at in range(len(ids) if before else 1):
                if self._spelled(ids[at:]) == wanted:
                    return ids[at:]
        return self.greedily(text)  # the names of special tokens, for example

    def _spelled(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.tokens[token] for token in ids if token < len(self.tokens))


def words_for(vocabulary: int) -> int:
    """Words of a mask."""
    return -(-vocabulary // WORD_BITS)


def grammar_of(wanted: Wanted) -> str:
    """In llguidance's terms. Raises ValueError for a schema nested too deeply."""
    match wanted:
        case JsonObject():
            return _json_grammar('{"type": "object"}')
        case JsonSchema(schema):
            return _json_grammar(schema)
        case Regex(regex):
            return LLMatcher.grammar_from_regex(regex)
        case Choice(choices):
            return LLMatcher.grammar_from_regex("|".join(_literally(text) for text in choices))
        case CallFormat():
            return call_grammar(wanted, WHITE_SPACE)
        case _:
            assert_never(wanted)


def _json_grammar(schema: str) -> str:
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITE_SPACE, "lenient": False})


def _literally(text: str) -> str:
    """An expression that matches that text only."""
    return "".join(character if character.isalnum() else rf"\x{{{ord(character):x}}}" for character in text)


def _fill(matcher: LLMatcher, rows: Masks, at: int) -> None:
    fill_next_token_bitmask(matcher, rows.view(np.int32), at)


def _allows(row: npt.NDArray[np.uint32], token: int) -> bool:
    word, bit = divmod(token, WORD_BITS)
    return 0 <= word < len(row) and bool(row[word] >> np.uint32(bit) & np.uint32(1))


def _reason(message: str) -> str:
    """The part of a message that says what is wrong; a regex's is drawn over many lines."""
    found = re.search(r"^error: (.*)$", message, re.MULTILINE)
    return found[1] if found else message.splitlines()[0][:200]
