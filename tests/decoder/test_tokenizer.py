from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract.errors import ErrorCode, PromptError
from engine.contract.ids import RequestId
from engine.contract.manifest import load_manifest
from engine.contract.prompt import prompt_from_fields
from engine.decoder.admission import Admission
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
from tests.manifests import manifest

PIECES = [bytes([i]) for i in range(256)]
imports_transformers = pytest.mark.xdist_group("transformers")  # a second and more of import: in one worker only


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


@imports_transformers
def test_a_vocabulary_that_is_not_of_bytes_is_read_as_it_is_written(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415
    from tokenizers import decoders, models  # noqa: PLC0415

    backend = Backend(models.BPE(vocab={"<unk>": 0, "▁Ġ": 1, "é": 2, "<0x0A>": 4}, merges=[], unk_token="<unk>"))
    backend.decoder = decoders.ByteFallback()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    pieces = HuggingFaceTokenizer(tmp_path, "").vocabulary()
    assert pieces == [b"<unk>", "▁Ġ".encode(), "é".encode(), None, b"<0x0A>"]


@imports_transformers
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


@imports_transformers
def test_a_vocabulary_whose_texts_are_not_made_of_its_tokens_gives_no_bytes(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415
    from tokenizers import decoders, models, pre_tokenizers  # noqa: PLC0415

    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert HuggingFaceTokenizer(tmp_path, "").text_bytes() is None


STRICT = (  # as Gemma 2's
    "{%- for m in messages -%}"
    "{%- if m.role == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}"
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{ raise_exception('Conversation roles must alternate') }}{%- endif -%}"
    "<{{ m.role }}>{{ m.content }}{%- endfor -%}"
)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Admission:
    """A model whose chat template refuses a lot."""
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415
    from tokenizers import models  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("strict")
    Backend(models.BPE({character: at for at, character in enumerate("<>abersuit")}, [])).save(
        str(folder / "tokenizer.json")
    )
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return Admission(manifest(), HuggingFaceTokenizer(folder, STRICT), 10)


@imports_transformers
@pytest.mark.parametrize(
    ("roles", "reason"),
    [(["system", "user"], "System role not supported"), (["user", "user"], "Conversation roles must alternate")],
)
def test_messages_that_the_chat_template_refuses_are_refused_in_its_words(
    strict: Admission, roles: list[str], reason: str
) -> None:
    """D12."""
    asked = {"messages": [{"role": role, "content": "a"} for role in roles]}
    with pytest.raises(PromptError, match=reason) as caught:
        strict.choices(prompt_from_fields(asked), RequestId("r"), 0.0)
    assert caught.value.code is ErrorCode.INVALID_PROMPT


@imports_transformers
def test_no_content_is_nothing_in_the_chat_template(strict: Admission) -> None:
    """D08, D09."""
    asked = [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": None}]
    messages = prompt_from_fields({"messages": [*asked, {"role": "user", "content": "b"}]}).messages
    assert messages is not None
    assert strict.tokenizer.chat(messages) == "<user>a<assistant><user>b"


CALLING = (
    "{% for tool in tools %}{{ tool | tojson }};{% endfor %}{% for message in messages %}<{{ message.role }}>"
    "{{ message.content }}{% for call in message.tool_calls %}{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
)


@pytest.mark.model
def test_either_kind_gives_tools_and_calls_to_the_chat_template(shards: Shards) -> None:
    function = {"name": "f", "description": 'Says "ü".', "parameters": {"type": "object", "properties": {"a": {}}}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, 2.5, null, true, "é"]}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "so", "tool_call_id": "c"},
    ]
    asked = prompt_from_fields({"messages": messages, "tools": [{"type": "function", "function": function}]})
    for tokenizer in (HuggingFaceTokenizer(DRAFT, CALLING), OpenVinoTokenizer(shards(1) / "tokenizer", CALLING)):
        text = tokenizer.chat(asked.messages or (), [tool.as_fields() for tool in asked.tools])
        assert text.startswith('{"type": "function", "function": {"name": "f", "description": "Says \\"ü\\"."')
        assert text.endswith(';<user>hi<assistant>f {"a": [1, 2.5, null, true, "é"]}<tool>so')
