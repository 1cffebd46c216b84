"""Whatever somebody writes into a field of a message, the reader names it; nothing else is ever raised."""

from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from engine.contract.control import DecoderHeartbeat, Open, Opened, StageHeartbeat, from_json, to_json
from engine.contract.drafts import (
    RemoteDraftRequest,
    RemoteDrafts,
    decode_draft_requests,
    decode_drafts,
    encode_draft_requests,
    encode_drafts,
)
from engine.contract.errors import FrameError, ManifestError, ShardlineError
from engine.contract.ids import RequestId
from engine.contract.logprobs import TokenLogprob, TopLogprob
from engine.contract.manifest import MANIFEST_NAME, FileDigest, load_manifest
from engine.contract.prompt import Choice, FinalEvent, Timings, Usage, decode_event, encode_event
from engine.contract.sampling import Sampling, expand_sampling
from engine.contract.side import Logprobs, RowSide, pack_logprobs, pack_rows, unpack_logprobs, unpack_rows
from tests.contract.test_control import HEARTBEAT
from tests.decoder.test_fleet import heartbeat
from tests.manifests import manifest

WRONG: tuple[Any, ...] = (None, True, 3, 2.5, "text", [], [None], ["a"], [-1], [[1]], {}, {"a": None}, {"a": {}})
HOW = Sampling(temperature=0.5, top_k=3, logit_bias={4: 1.5}, seed=9, logprobs=2)
LOGPROB = TokenLogprob(id=1, logprob=-0.5, top=(TopLogprob(1, -0.5, (120,)),))
FINAL = FinalEvent(
    request=RequestId("r"),
    seq=1,
    text="x",
    ids=(1,),
    finish_reason="stop",
    usage=Usage(prompt_tokens=1, completion_tokens=1),
    timings=Timings(queued=0.0, first_token=1.0, total=2.0),
    error={"code": "internal", "message": "x"},
    logprobs=(LOGPROB,),
    choices=(Choice(text="x", ids=(1,), finish_reason="stop", logprobs=(LOGPROB,)),),
)
OPEN = Open(epoch=1, decoder="d", done="s", next_subject="", next_incarnation=0)
ASKED = RemoteDraftRequest("k", 0, [1, 2], 3, HOW.compact())
ROW = RowSide(row=0, how=HOW, position=5, drafts=(1,), read=(2,), said=(3,), times=(1,))
NO_MASKS = np.empty((0, 0), np.int32)


def rows_of(data: bytes) -> object:
    return unpack_rows(orjson.loads(data), NO_MASKS)


def logprobs_of(data: bytes) -> object:
    return unpack_logprobs(orjson.loads(data))


READERS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "open": (to_json(OPEN), lambda data: from_json(Open, data)),
    "opened": (to_json(Opened(epoch=1, incarnation=2)), lambda data: from_json(Opened, data)),
    "stage heartbeat": (to_json(heartbeat(0)), lambda data: from_json(StageHeartbeat, data)),
    "decoder heartbeat": (to_json(HEARTBEAT), lambda data: from_json(DecoderHeartbeat, data)),
    "event": (encode_event(FINAL), decode_event),
    "draft requests": (encode_draft_requests([ASKED]), decode_draft_requests),
    "drafts": (encode_drafts(RemoteDrafts([[1, 2]], ["ready"])), decode_drafts),
    "sampling": (orjson.dumps(HOW.compact()), lambda data: expand_sampling(orjson.loads(data))),
    "rows": (orjson.dumps(pack_rows([ROW])[0]), rows_of),
    "logprobs": (orjson.dumps(pack_logprobs([Logprobs(-0.5, (1,), (-0.5,))])), logprobs_of),
}


def places(value: Any) -> list[tuple[Any, ...]]:
    """Ways to every value inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way for key, inner in items for way in ((key,), *((key, *rest) for rest in places(inner)))]


def changed(whole: bytes, way: tuple[Any, ...], value: Any) -> bytes:
    found = orjson.loads(whole)
    at = found
    for key in way[:-1]:
        at = at[key]
    at[way[-1]] = value
    return orjson.dumps(found)


def well_typed(kind: type, value: Any) -> bool:
    return type(value) is kind or (kind is float and type(value) is int)


@pytest.mark.parametrize("name", READERS)
def test_a_field_of_another_type_is_refused_by_the_usual_error(name: str) -> None:
    whole, reader = READERS[name]
    reader(whole)
    refused = 0
    for way in places(orjson.loads(whole)):
        for value in WRONG:
            try:
                reader(changed(whole, way, value))
            except FrameError:
                refused += 1
    assert refused > len(WRONG)
    for noise in (
        b"null",
        b"[]",
        b"{}",
        b"3",
        b'"x"',
        b"[3]",
        b"[[]]",
        b'[{"a": 1}]',
        b'{"rows": 3}',
        b'{"rows": [1]}',
    ):
        try:
            reader(noise)
        except FrameError:
            refused += 1


@pytest.mark.parametrize("kind", [StageHeartbeat, Open, Opened])
def test_a_scalar_field_takes_its_own_type_only(kind: Any) -> None:
    whole = {StageHeartbeat: to_json(heartbeat(0)), Open: to_json(OPEN), Opened: READERS["opened"][0]}[kind]
    for field in fields(kind):
        if field.type not in (int, float, str):
            continue
        for value in WRONG:
            if well_typed(field.type, value):  # type: ignore[arg-type]
                continue
            with pytest.raises(FrameError, match=field.name):
                from_json(kind, changed(whole, (field.name,), value))


def test_a_manifest_with_a_field_of_another_type_is_refused_by_its_place(tmp_path: Path) -> None:
    file = FileDigest(path="x", bytes=1, sha256="0" * 64)
    whole = orjson.dumps(asdict(manifest(tokenizer_files=(file,), versions={"openvino": "1"})))
    path = tmp_path / MANIFEST_NAME
    refused: list[str] = []
    for way in places(orjson.loads(whole)):
        for value in (None, True, "text", [1]):
            path.write_bytes(changed(whole, way, value))
            try:
                load_manifest(tmp_path)
            except ManifestError as error:
                refused.append(str(error))
    assert any("stages[1].first_layer is 'text', not a whole number" in text for text in refused)
    assert any("tokenizer_files[0].bytes is True" in text for text in refused)
    assert len(refused) > 100


def test_an_unknown_field_of_a_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(orjson.dumps({**asdict(manifest()), "colour": "red"}))
    with pytest.raises(ShardlineError, match="colour is not known"):
        load_manifest(tmp_path)
