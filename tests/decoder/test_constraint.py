import json
import random
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import numpy as np
import pytest

from engine.contract.errors import ErrorCode, PromptError
from engine.contract.manifest import load_manifest
from engine.contract.response_format import Choice, JsonObject, JsonSchema, Regex, ResponseFormat
from engine.decoder.constraint import Constraint, ConstraintCompiler, words_for
from engine.decoder.tokenizer import HuggingFaceTokenizer, load_tokenizer
from engine.local.model import DRAFT
from tests.conftest import Shards

EOS = (260, 261)
VOCABULARY = 270  # some of the last ones stand for nothing
PIECES: list[bytes] = [*(bytes([i]) for i in range(256)), b"ab", b"abc", b"ab", b'": "', b"", b"", b"\xff\xff", b"  "]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        "state": {"enum": ["new", "old", None]},
        "parts": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {"id": {"type": "integer", "minimum": -9, "maximum": 9}, "fits": {"type": "boolean"}},
                "required": ["id"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["name", "age", "zip", "state", "parts"],
    "additionalProperties": False,
}


class SmallTokenizer:
    """Every byte, a few longer pieces, two ends, ids that stand for nothing."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(text.encode())

    def text_bytes(self) -> Sequence[bytes]:
        return PIECES


@pytest.fixture(scope="module")
def compiler() -> ConstraintCompiler:
    return ConstraintCompiler(SmallTokenizer(), vocabulary=VOCABULARY, eos_ids=EOS)


def allowed(row: "np.ndarray[Any, np.dtype[np.uint32]]") -> set[int]:
    bits = np.unpackbits(np.ascontiguousarray(row).view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def now(constraint: Constraint) -> set[int]:
    return allowed(constraint.masks([])[0])


def spelled(tokens: Sequence[int]) -> bytes:
    return b"".join(PIECES[token] for token in tokens)


def beginnings(texts: set[bytes]) -> set[bytes]:
    return {text[:length] for text in texts for length in range(len(text) + 1)}


def test_masks_are_what_trying_every_token_gives(compiler: ConstraintCompiler) -> None:
    """A language small enough to be written down: each state is reached by every spelling of it."""
    expression = r"(ab|abc)?(é|[xy]{1,2})"
    tails = {"é", "x", "y", "xx", "xy", "yx", "yy"}
    texts = {(head + tail).encode() for head in ("", "ab", "abc") for tail in tails}
    assert all(re.fullmatch(expression, text.decode()) for text in texts)
    possible = beginnings(texts)
    states: list[tuple[int, ...]] = [()]
    while states:
        tokens = states.pop()
        constraint = compiler.constraint(Regex(expression))
        constraint.accept(tokens)
        here = spelled(tokens)
        onward = {t for t, piece in enumerate(PIECES) if piece and here + piece in possible}
        assert now(constraint) == onward | (set(EOS) if here in texts else set()), here
        assert constraint.finished == (not onward)
        states += [(*tokens, token) for token in onward]


@pytest.mark.parametrize("eos", EOS)
def test_an_answer_ends_where_its_grammar_does(compiler: ConstraintCompiler, eos: int) -> None:
    constraint = compiler.constraint(Regex("ab"))
    constraint.accept([256])
    assert constraint.finished
    assert now(constraint) == set(EOS)
    assert constraint.filter([eos, 97]) == (eos,)
    constraint.accept([eos])
    constraint.accept([eos])
    assert now(constraint) == set(EOS)
    assert not constraint.error


def test_where_an_answer_may_end_it_may_also_go_on(compiler: ConstraintCompiler) -> None:
    constraint = compiler.constraint(Regex("a+"))
    assert not now(constraint) & set(EOS)
    constraint.accept(b"a")
    assert now(constraint) == {97, *EOS}
    assert not constraint.finished
    constraint.accept([EOS[1]])
    assert constraint.finished


def test_a_choice_is_one_of_the_texts_whatever_is_in_them(compiler: ConstraintCompiler) -> None:
    choices = ("a|b", 'say "no"\n', "\\d{2}.*", "a|bc", "日本", "]^-[$")
    for wanted in choices:
        constraint = compiler.constraint(Choice(choices))
        constraint.accept(list(wanted.encode()))
        assert set(EOS) <= now(constraint)
    constraint = compiler.constraint(Choice(choices))
    assert now(constraint) == {text.encode()[0] for text in choices}
    constraint.accept(b"a|b")
    assert now(constraint) == {ord("c"), *EOS}


def test_rows_of_drafts_are_the_masks_behind_them(compiler: ConstraintCompiler) -> None:
    document = b'{"name": "Zo\xc3\xab", "age": 7, "zip": "00501", "state": null, "parts": [{"id": -3}]}'
    wanted = JsonSchema(json.dumps(SCHEMA))
    constraint, one_by_one = compiler.constraint(wanted), compiler.constraint(wanted)
    for at in range(0, len(document), 4):
        drafts = list(document[at : at + 4])
        rows = constraint.masks(drafts)
        assert rows.dtype == np.uint32
        assert rows.shape == (len(drafts) + 1, words_for(VOCABULARY))
        for row, draft in zip(rows, [*drafts, None], strict=True):
            assert allowed(row) == now(one_by_one)
            if draft is not None:
                one_by_one.accept([draft])
        constraint.accept(drafts)
    assert constraint.finished


def test_rows_behind_a_wrong_draft_repeat_the_last_valid_one(compiler: ConstraintCompiler) -> None:
    constraint = compiler.constraint(Regex("(ab|b)c"))
    for drafts in ([97, 120, 98], [97, 500, 98], [97, -1, 98], [97, 259, 98]):
        rows = constraint.masks(drafts)
        assert [allowed(row) for row in rows] == [{97, 98, 256, 257, 258}, {98}, {98}, {98}]
    ended = compiler.constraint(Regex("a")).masks([97, EOS[0], 97])
    assert [allowed(row) for row in ended] == [{97}, set(EOS), set(EOS), set(EOS)]


def test_asking_changes_nothing(compiler: ConstraintCompiler) -> None:
    constraint = compiler.constraint(Regex("abc(x|y)"))
    before = now(constraint)
    for drafts in ([97, 98, 99, 120, EOS[0]], [120], [257, 500], [-5]):
        constraint.masks(drafts)
        constraint.filter(drafts)
        constraint.forced(4)
        assert now(constraint) == before
        assert not constraint.error
    constraint.accept([257])
    assert now(constraint) == {120, 121}


def test_text_that_is_certain_is_spelled_as_the_tokenizer_would(compiler: ConstraintCompiler) -> None:
    """This one spells everything byte by byte, though there is a token for "abc"."""
    assert now(compiler.constraint(Regex("abc!"))) == {97}


@pytest.mark.parametrize("spell", ["adds a space", "takes it for a special token", "knows no other ids"])
def test_a_tokenizer_that_spells_something_else_is_not_followed(spell: str) -> None:
    class Strange(SmallTokenizer):
        def encode(self, text: str, *, special: bool) -> list[int]:
            ids = super().encode(text, special=special)
            return {"adds a space": [32, *ids], "takes it for a special token": [EOS[0]]}.get(spell, [5000])

    constraint = ConstraintCompiler(Strange(), vocabulary=VOCABULARY, eos_ids=EOS).constraint(Regex("abc!"))
    (token,) = now(constraint)
    assert b"abc!".startswith(PIECES[token])
    constraint.accept([97])
    assert spelled(constraint.forced(9)) == b"bc!"


def test_drafts_are_kept_as_far_as_they_are_allowed(compiler: ConstraintCompiler) -> None:
    constraint = compiler.constraint(Regex("abc(x|y)"))
    assert constraint.filter([97, 98, 99, 121, EOS[0], 97]) == (97, 98, 99, 121, EOS[0])
    assert constraint.filter([257, 98]) == (257,)
    assert constraint.filter([98]) == ()
    assert constraint.filter([97, 9999]) == (97,)
    assert constraint.filter([]) == ()


def test_tokens_that_are_certain_are_allowed_drafts(compiler: ConstraintCompiler) -> None:
    wanted = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    constraint = compiler.constraint(JsonSchema(json.dumps({**wanted, "additionalProperties": False})))
    constraint.accept(b'{"a')
    forced = constraint.forced(16)
    assert spelled(forced) == b'nswer"'[: len(forced)]
    assert len(forced) >= 4, forced
    assert constraint.filter(forced) == forced
    assert constraint.forced(2) == forced[:2]


def test_a_token_that_is_not_allowed_is_not_accepted(compiler: ConstraintCompiler) -> None:
    constraint = compiler.constraint(Regex("ab"))
    with pytest.raises(ValueError, match="token 98 is not allowed"):
        constraint.accept([98])
    constraint.accept([97])
    with pytest.raises(ValueError, match="token 9999 is not allowed"):
        constraint.accept([98, 9999])


@pytest.mark.parametrize("wanted", [JsonObject(), JsonSchema('{"type": "array"}')])
def test_json_is_not_filled_with_blanks(compiler: ConstraintCompiler, wanted: ResponseFormat) -> None:
    begin = b"{" if wanted == JsonObject() else b"["
    for blank, more in ((b" ", set()), (b"\n", {32, 9, 263}), (b"\n" + b" " * 32, set())):
        constraint = compiler.constraint(wanted)
        constraint.accept(begin + blank)
        assert now(constraint) & {32, 10, 13, 9, 263} == more
    constraint = compiler.constraint(wanted)
    assert not now(constraint) & {32, 10, 13, 9, 263}
    constraint.accept(begin + (b"}" if begin == b"{" else b"]"))
    assert now(constraint) == set(EOS)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Regex("(a"), "unclosed group"),
        (Regex("a(?=b)"), "look-around"),
        (Regex(r"(a)\1"), "backreferences are not supported"),
        (JsonSchema('{"type": "banana"}'), "banana"),
        (JsonSchema('{"type": "array", "uniqueItems": true}'), "uniqueItems"),
        (JsonSchema('{"x-guidance": {"lenient": true}, "not": {}}'), "not"),
        (JsonSchema('{"$ref": "https://example.org/schema"}'), "https://example.org/schema"),
        (JsonSchema('{"type": "integer", "minimum": 5, "maximum": 3}'), "minimum (5)"),
        (JsonSchema('{"type":"array","items":' * 1000 + "{}" + "}" * 1000), "recursion limit"),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_name(
    compiler: ConstraintCompiler, wanted: ResponseFormat, names: str
) -> None:
    with pytest.raises(PromptError) as caught:
        compiler.constraint(wanted)
    assert caught.value.code is ErrorCode.INVALID_PROMPT
    assert str(caught.value).startswith("'response_format' cannot be kept to: ")
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_texts_of_tokens_is_refused() -> None:
    class Opaque(SmallTokenizer):
        def text_bytes(self) -> None:  # type: ignore[override]
            return None

    with pytest.raises(PromptError, match="tokenizer"):
        ConstraintCompiler(Opaque(), vocabulary=VOCABULARY, eos_ids=EOS).constraint(Regex("a"))
    with pytest.raises(PromptError, match="how an answer ends"):
        ConstraintCompiler(SmallTokenizer(), vocabulary=VOCABULARY, eos_ids=()).constraint(Regex("a"))


def test_threads_share_what_was_compiled_but_not_where_they_are(compiler: ConstraintCompiler) -> None:
    wanted = JsonSchema(json.dumps(SCHEMA))

    def walk(seed: int) -> Any:
        return random_document(compiler.constraint(wanted), random.Random(seed), PIECES)

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(walk, range(8)))
    assert together == [walk(seed) for seed in range(8)]


def random_document(constraint: Constraint, chance: random.Random, pieces: Sequence[bytes]) -> bytes:
    """Allowed tokens at random, half of the time the first one, until the end is allowed."""
    text = b""
    for _ in range(3000):
        choices = sorted(now(constraint))
        if ends := [token for token in choices if not pieces[token]]:
            constraint.accept([chance.choice(ends)])
            assert constraint.finished
            return text
        token = chance.choice(choices) if chance.random() < 0.5 else choices[0]
        constraint.accept([token])
        text += pieces[token]
    raise AssertionError(f"no end: {text[-80:]!r}")


def test_random_allowed_tokens_make_a_valid_document(compiler: ConstraintCompiler) -> None:
    for seed in range(40):
        constraint = compiler.constraint(JsonSchema(json.dumps(SCHEMA)))
        jsonschema.validate(json.loads(random_document(constraint, random.Random(seed), PIECES)), SCHEMA)


@pytest.fixture(scope="module")
def demo(shards: Shards) -> tuple[ConstraintCompiler, list[bytes]]:
    """The demo model's tokenizer, which is OpenVINO's."""
    manifest = load_manifest(shards(1))
    tokenizer = load_tokenizer(shards(1), manifest)
    made = ConstraintCompiler(tokenizer, vocabulary=manifest.vocabulary, eos_ids=manifest.eos_ids)
    return made, tokenizer.text_bytes() or []


@pytest.mark.model
def test_random_walks_through_a_real_vocabulary_make_valid_documents(
    demo: tuple[ConstraintCompiler, list[bytes]],
) -> None:
    made, pieces = demo
    for seed in range(15):
        constraint = made.constraint(JsonSchema(json.dumps(SCHEMA)))
        jsonschema.validate(json.loads(random_document(constraint, random.Random(seed), pieces)), SCHEMA)


@pytest.mark.model
def test_a_choice_is_spelled_with_any_tokens_of_a_real_vocabulary(demo: tuple[ConstraintCompiler, list[bytes]]) -> None:
    made, pieces = demo
    choices = ("Paris", "Praha", "<|im_end|>")
    found = {random_document(made.constraint(Choice(choices)), random.Random(seed), pieces) for seed in range(30)}
    assert found == {text.encode() for text in choices}


@pytest.mark.model
def test_either_kind_of_tokenizer_has_the_same_texts(shards: Shards) -> None:
    ours = load_tokenizer(shards(1), load_manifest(shards(1))).text_bytes() or []
    theirs = HuggingFaceTokenizer(DRAFT, "").text_bytes() or []
    assert ours == theirs[: len(ours)]
    assert ours[2] == b""
    assert not any(theirs[len(ours) :])
