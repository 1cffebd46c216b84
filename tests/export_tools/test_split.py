"""The cut on the real model: every shard runs, the chain is the whole, what was promised is in the manifest."""

from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from engine.contract.errors import CutError, UsageError
from engine.contract.manifest import check_files, load_manifest
from export_tools.passes.beam_gather import inject_beam_gather, remove_beam_gather
from export_tools.passes.boundaries import find_boundaries
from export_tools.passes.cut import caches_by_layer, cut
from export_tools.passes.graph import ancestors, kind, variable
from export_tools.passes.head import pick_before_head
from export_tools.passes.shapes import mend_broadcasts
from export_tools.sources.open import open_source
from export_tools.split import SplitOptions, split
from tests.conftest import Shards

pytestmark = pytest.mark.model
F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


@pytest.fixture(scope="module")
def whole(shards: Shards) -> Path:
    """The one-stage shard is the whole model; it is cut again here."""
    return shards(1) / "stage0" / "openvino_model.xml"


def read(path: Path) -> ov.Model:
    return ov.Core().read_model(path)


def outputs(models: list[ov.Model], steps: list[list[int]]) -> list[np.ndarray]:
    requests = [ov.Core().compile_model(model, "CPU", F32).create_infer_request() for model in models]
    found, past = [], 0
    for tokens in steps:
        value: np.ndarray = np.array([tokens], np.int64)
        for request in requests:
            names = {port.get_any_name() for port in request.model_inputs}
            inputs = {
                "attention_mask": np.ones((1, past + len(tokens)), np.int64),
                "position_ids": np.arange(past, past + len(tokens), dtype=np.int64)[None],
                "beam_idx": np.zeros(1, np.int32),
                "input_ids" if "input_ids" in names else "inputs_embeds": value,
            }
            request.infer({key: array for key, array in inputs.items() if key in names})
            value = request.get_output_tensor(0).data.copy()
        past += len(tokens)
        found.append(value)
    return found


STEPS = [[19556, 665, 28, 638, 314], [9], [8, 7, 6]]


@pytest.mark.parametrize("at", [1, 13, 29])
def test_both_sides_of_a_cut_give_what_the_whole_gives(whole: Path, at: int) -> None:
    expected = outputs([read(whole)], STEPS)
    chain = outputs([cut(lambda: read(whole), 0, at), cut(lambda: read(whole), at, 30)], STEPS)
    assert all(np.array_equal(a, b) for a, b in zip(expected, chain, strict=True))


def test_a_shard_keeps_the_settings_of_the_whole(whole: Path) -> None:
    model = read(whole)
    model.set_rt_info("f16", ["runtime_options", "KV_CACHE_PRECISION"])
    ov.save_model(model, path := whole.parent / "with_info.xml", compress_to_fp16=False)
    try:
        shard = cut(lambda: read(path), 3, 7)
        assert shard.get_rt_info(["runtime_options", "KV_CACHE_PRECISION"]).astype(str) == "f16"
    finally:
        path.unlink()
        path.with_suffix(".bin").unlink()


@pytest.mark.parametrize(("first", "last"), [(0, 31), (5, 5), (-1, 3), (7, 2)])
def test_what_is_no_range_of_layers_is_refused(whole: Path, first: int, last: int) -> None:
    with pytest.raises(CutError, match="30 layers"):
        cut(lambda: read(whole), first, last)


def test_the_gather_is_put_back_where_it_was_taken_out(whole: Path) -> None:
    shard = cut(lambda: read(whole), 28, 30)
    assert remove_beam_gather(shard) == 4
    assert inject_beam_gather(shard) == 4
    assert inject_beam_gather(shard) == 0


def test_the_head_on_picked_positions_gives_their_logits(whole: Path) -> None:
    tokens = np.array([[19556, 665, 28, 638]], np.int64)
    inputs = {
        "input_ids": tokens,
        "attention_mask": np.ones((1, 4), np.int64),
        "position_ids": np.arange(4, dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    everything = ov.Core().compile_model(read(whole), "CPU", F32).create_infer_request().infer(inputs)[0]
    model = read(whole)
    pick_before_head(model, axis=1)
    request = ov.Core().compile_model(model, "CPU", F32).create_infer_request()
    picked = request.infer({**inputs, "picked": np.array([1, 3], np.int64)})[0]
    assert np.array_equal(picked, everything[:, [1, 3]])


def test_a_graph_without_attention_cannot_be_cut() -> None:
    from openvino import opset13 as op  # noqa: PLC0415

    x = op.parameter([1, 4], ov.Type.f32, name="x")
    with pytest.raises(CutError, match="ScaledDotProductAttention"):
        find_boundaries(ov.Model([op.relu(x)], [x], "no attention"))  # pyright: ignore[reportGeneralTypeIssues]


@pytest.mark.parametrize(("shape", "fits"), [([-1, 2, -1, 8], True), ([-1, 2, 8], False), ([-1, 16, 4], False)])
def test_a_state_that_does_not_grow_with_the_tokens_is_refused(shape: list[int], fits: bool) -> None:
    """B19: of a recurrent layer in front of attention."""
    from openvino import opset13 as op  # noqa: PLC0415
    from openvino.op.util import Variable, VariableInfo  # noqa: PLC0415

    info = VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape(shape), ov.Type.f32, "conv.1"
    x = op.parameter([-1, 2, -1, 8], ov.Type.f32, name="x")
    state = op.read_value(op.parameter(shape, ov.Type.f32, name="first"), Variable(info))
    keys = op.reshape(state, op.constant([0, 2, -1, 8]), special_zero=True)
    model = ov.Model([op.scaled_dot_product_attention(x, keys, keys)], [x, *parameters_of(state)], "hybrid")  # pyright: ignore[reportGeneralTypeIssues]
    found = find_boundaries(model)
    if fits:
        assert len(caches_by_layer(model, found)[0]) == 1
        return
    with pytest.raises(CutError, match=r"conv\.1.* not a KV cache"):
        caches_by_layer(model, found)


def parameters_of(node: ov.Node) -> list[ov.Node]:
    return [value.get_node() for value in node.input_values()]


def test_the_manifest_says_what_was_made(shards: Shards) -> None:
    folder = shards(3)
    manifest = load_manifest(folder)
    assert [(s.first_layer, s.last_layer) for s in manifest.stages] == [(0, 5), (5, 25), (25, 30)]
    assert (manifest.hidden_size, manifest.vocabulary, manifest.context_length) == (576, 49152, 8192)
    assert manifest.eos_ids == (2,)
    assert "<|im_start|>" in manifest.chat_template
    assert manifest.kv_bytes_per_token == 30 * 2 * 3 * 64 * 4
    for stage in manifest.stages:
        check_files(folder, stage.files)


def test_a_split_that_fails_leaves_nothing_behind(shards: Shards, demo_model: Path, tmp_path: Path) -> None:
    with open_source(demo_model) as source:
        with pytest.raises(UsageError):
            split(source, SplitOptions(out=tmp_path / "out", stages=31), print)
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "there").mkdir()
        with pytest.raises(UsageError, match="--force"):
            split(source, SplitOptions(out=tmp_path / "there", stages=2), print)


def share_cache(model: ov.Model, user: int, owner: int) -> None:
    """Let a layer attend to another one's keys and values, as the last layers of Gemma 3n do."""
    attention = find_boundaries(model).attention
    for port in (1, 2):
        attention[user].input(port).replace_source_output(attention[owner].input_value(port))
    mend_broadcasts(model)  # attention that shares its cache is not fused
    kept = {variable(node) for node in ancestors(model.get_results()) if kind(node) == "ReadValue"}
    for sink in [sink for sink in model.get_sinks() if variable(sink) not in kept]:
        model.remove_sink(sink)
    for state in [state for state in model.get_variables() if state.get_info().variable_id not in kept]:
        model.remove_variable(state)


def sharing(whole: Path) -> ov.Model:
    model = read(whole)
    share_cache(model, user=29, owner=27)
    return model


@pytest.mark.parametrize("at", [28, 29])
def test_a_cut_between_layers_that_share_a_cache_is_refused_by_name(whole: Path, at: int) -> None:
    cut(lambda: sharing(whole), 0, at)
    with pytest.raises(CutError, match="must be on one stage"):
        cut(lambda: sharing(whole), at, 30)


def test_a_cut_before_layers_that_share_a_cache_changes_nothing(whole: Path) -> None:
    expected = outputs([sharing(whole)], STEPS)
    chain = outputs([cut(lambda: sharing(whole), 0, 26), cut(lambda: sharing(whole), 26, 30)], STEPS)
    assert all(np.array_equal(a, b) for a, b in zip(expected, chain, strict=True))
    assert not np.array_equal(expected[0], outputs([read(whole)], STEPS)[0])
