"""Whatever bytes come in, from whomever: a reader takes them or refuses them with its own error, never another one."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract.errors import FrameError, ManifestError, PromptError
from engine.contract.ids import RequestId
from engine.contract.manifest import MANIFEST_NAME, FileDigest, load_manifest
from engine.contract.messages import Rows, StepSide
from engine.contract.prompt import parse_prompt, peek_id
from engine.contract.sampling import Sampling
from engine.contract.side import RowSide
from engine.decoder.admission import Admission
from engine.decoder.constraint import ConstraintCompiler
from engine.gateway.errors import ApiError
from engine.gateway.request import read_body, read_chat, read_completion
from engine.transport.base import Incoming
from engine.wire.frame import encode
from stages.checks import RowChecks, ShardShape
from stages.core import StageCore
from stages.joining import Joining
from tests.contract.test_reading import READERS
from tests.decoder.local_pipeline import ByteTokenizer
from tests.fuzz.strategies import VALUES, as_json, changed, damaged
from tests.manifests import manifest
from tests.stages.fakes import HIDDEN, SUBJECTS, VOCABULARY, AddingShard, identity, opening, step
from tests.wire.test_frame import frames

PROMPT: dict[str, Any] = {
    "id": "a",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "why"}]}],
    "max_tokens": 5,
    "stop": ["x"],
    "ignore_eos": False,
    "draft": "auto",
    "draft_tokens": 2,
    "n": 2,
    "priority": 1,
    "deadline_ms": 100,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.9,
    "min_p": 0.1,
    "seed": 7,
    "logit_bias": {"4": 1.5},
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logprobs": True,
    "top_logprobs": 2,
}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "why"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "so"},
    ],
    "tools": [FUNCTION],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": True,
}
GOING_ON: dict[str, Any] = {
    "prompt": "x",
    "told": [{"index": 0, "ids": [1, 2], "logprobs": [{"id": 1, "logprob": -1.5}], "numerics": ["a"]}],
    "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
}
PROMPTS = st.one_of(*(how(as_json(one)) for one in (PROMPT, CALLING, GOING_ON) for how in (changed, damaged)))
FORMATS: list[dict[str, Any]] = [
    {"type": "regex", "regex": "[0-9]+"},
    {"type": "choice", "choices": ["yes", "no"]},
    {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {}}}}},
]
BODY: dict[str, Any] = {
    **{name: value for name, value in PROMPT.items() if name not in ("id", "logprobs", "top_logprobs")},
    "model": "model",
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "json_object"},
    "metadata": {},
}
ANY_JSON = st.dictionaries(st.sampled_from([*BODY, *PROMPT, "prompt", "x"]), VALUES, max_size=4).map(as_json)
ADMISSION = Admission(
    manifest(),
    ByteTokenizer(),
    10,
    compiler=ConstraintCompiler(ByteTokenizer(), vocabulary=manifest().vocabulary, eos_ids=manifest().eos_ids),
)


@given(st.data())
@pytest.mark.parametrize("name", READERS)
def test_a_message_is_read_or_refused(name: str, data: st.DataObject) -> None:
    whole, reader = READERS[name]
    sent = data.draw(changed(whole) | damaged(whole) | VALUES.map(as_json))
    try:
        found = orjson.loads(sent)
    except orjson.JSONDecodeError:
        found = None  # readers of a frame's JSON section never see it
    with suppress(FrameError):
        if found is not None or name not in ("sampling", "rows", "logprobs"):
            reader(sent)


class CheckedShard(AddingShard):
    """With the checks that real runners make first."""

    def __init__(self, *, last: bool) -> None:
        super().__init__(last=last)
        shape = ShardShape(first=True, last=last, hidden_size=HIDDEN, vocabulary=VOCABULARY)
        self._checks = RowChecks(self.capabilities, shape)

    def infer(self, rows: Rows, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        self._checks.check(rows, value)
        return super().infer(rows, np.minimum(value, VOCABULARY - 2))


TOKENS = st.lists(st.integers(-2, VOCABULARY + 1), max_size=3).map(tuple)
ROWS = st.builds(
    RowSide,
    row=st.integers(-1, 2),
    how=st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.5]),
        top_k=st.integers(0, 3),
        logit_bias=st.dictionaries(st.integers(-1, VOCABULARY), st.floats(-100, 100), max_size=2),
        logprobs=st.none() | st.integers(0, 3),
        seed=st.integers(0, 2**64 - 1),
    ),
    position=st.integers(0, 100),
    drafts=TOKENS,
    read=TOKENS,
    said=TOKENS,
    times=st.lists(st.integers(-1, 3), max_size=3).map(tuple),
)
GOOD = step(0)
FRAMES = [GOOD, replace(GOOD, sides=1), step(0, start=3, tokens=(1, 2, 3)), *frames()]
SIDES = st.lists(ROWS, max_size=2).map(
    lambda rows: encode(StepSide(epoch=GOOD.epoch, number=GOOD.number, incarnation=GOOD.incarnation, rows=tuple(rows)))
)


@given(st.data())
@pytest.mark.parametrize("last", [False, True])
def test_a_frame_is_computed_refused_or_dropped(last: bool, data: st.DataObject) -> None:
    whole = st.sampled_from(FRAMES).map(encode)
    sent = data.draw(whole | whole.flatmap(damaged))
    sides = data.draw(st.lists(SIDES | SIDES.flatmap(damaged), max_size=2))
    core = StageCore(identity(0, 1 if last else 2), CheckedShard(last=last), SUBJECTS)
    core.open(opening(1, then=None if last else identity(1, 2, incarnation=9)))
    joining = Joining(last)
    for frame in (*sides, sent):
        joining.add(Incoming("subject", frame, "", False, 0.0))
    for joined in joining.rest():
        core.handle(joined.data, "", joined.sides)
    core.handle(sent, "", sides)


@given(st.data())
def test_a_manifest_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    file = FileDigest(path="x", bytes=1, sha256="0" * 64)
    whole = orjson.dumps(asdict(manifest(tokenizer_files=(file,), versions={"openvino": "1"})))
    folder = tmp_path_factory.getbasetemp()
    (folder / MANIFEST_NAME).write_bytes(data.draw(changed(whole) | damaged(whole) | st.binary(max_size=50)))
    with suppress(ManifestError):
        load_manifest(folder)


@given(PROMPTS | ANY_JSON | st.binary(max_size=50))
def test_a_prompt_is_admitted_or_refused(data: bytes) -> None:
    peek_id(data)
    with suppress(PromptError):
        ADMISSION.choices(parse_prompt(data), RequestId("r"), 0.0)


@given(st.sampled_from(FORMATS).flatmap(lambda found: changed(as_json({"prompt": "x", "response_format": found}))))
def test_a_format_is_read_or_refused(data: bytes) -> None:
    with suppress(PromptError):
        parse_prompt(data)


@given(changed(as_json(BODY)) | damaged(as_json(BODY)) | ANY_JSON | st.binary(max_size=50))
@pytest.mark.parametrize("read", [read_chat, read_completion])
def test_the_body_of_a_request_is_read_or_refused(read: Callable[[Any], object], data: bytes) -> None:
    with suppress(ApiError):
        read(read_body(data))


def test_what_these_tests_begin_with_is_right() -> None:
    assert parse_prompt(as_json(PROMPT)).n == 2
    for found in (CALLING, GOING_ON):
        assert ADMISSION.choices(parse_prompt(as_json(found)), RequestId("r"), 0.0)
    assert read_chat(read_body(as_json(BODY))).stream
    for found in FORMATS:
        parse_prompt(as_json({"prompt": "x", "response_format": found}))
