"""The static pass on the real model: what an NPU would be given, and what is refused instead of computed wrongly."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import openvino as ov
import pytest
from openvino import opset13 as op

from engine.contract.errors import CutError
from engine.contract.static import StaticLimits
from export_tools.passes.boundaries import ATTENTION
from export_tools.passes.causal import MASK_INPUT, check_causal, check_positions
from export_tools.passes.graph import find_input, kind, redirect
from export_tools.passes.npu import check_npu
from export_tools.passes.static import static_shapes, to_static
from tests.conftest import Shards

pytestmark = pytest.mark.model
LIMITS = StaticLimits(context=64, slots=4, verify_tokens=4, prefill_chunk=32)


def stage(shards: Shards, index: int) -> ov.Model:
    return ov.Core().read_model(shards(2) / f"stage{index}" / "openvino_model.xml")


@pytest.fixture
def changed(shards: Shards) -> Callable[[Callable[[ov.Output], ov.Output]], ov.Model]:
    """The second stage with something done to its attention mask."""

    def make(change: Callable[[ov.Output], ov.Output]) -> ov.Model:
        model = stage(shards, 1)
        mask = next(node for node in model.get_ordered_ops() if kind(node) == ATTENTION).input_value(MASK_INPUT)
        readers = [n for n in model.get_ops() if kind(n) == ATTENTION]
        other = change(mask)
        for node in readers:
            node.input(MASK_INPUT).replace_source_output(other)
        model.validate_nodes_and_infer_types()
        return model

    return make


def weight_bytes(model: ov.Model) -> int:
    return sum(node.get_byte_size() for node in model.get_ops() if kind(node) == "Constant")


@pytest.mark.parametrize("index", [0, 1])
def test_a_static_shard_has_nothing_but_fixed_shapes_ports_and_known_operations(shards: Shards, index: int) -> None:
    before = weight_bytes(stage(shards, index))
    for shape in static_shapes(LIMITS, kv="f16"):
        model = to_static(stage(shards, index), shape, last=index == 1)
        assert not any(o.get_partial_shape().is_dynamic for node in model.get_ops() for o in node.outputs())
        assert not model.get_sinks()
        assert not model.get_variables()
        assert {kind(node) for node in model.get_ops()}.isdisjoint({"ReadValue", "Assign", "ShapeOf", "Range"})
        names = {port.get_any_name(): list(port.get_shape()) for port in model.inputs}
        picked = {"picked"} if shape.picked and index == 1 else set()
        own = {"input_ids" if index == 0 else "inputs_embeds", "position_ids", "mask"}
        assert set(names) == own | picked | {f"past.{i}" for i in range(30)}
        assert names["past.0"] == [1, 3, 4 * 64, 64]
        assert names["mask"] == [1, 1, shape.tokens, 4 * 64 + shape.tokens]
        tokens = shape.picked or shape.tokens
        assert list(model.output(0).get_shape()) == ([1, shape.tokens, 576] if index == 0 else [1, tokens, 49152])
        assert [port.get_any_name() for port in model.outputs[1:]] == [f"present.{i}" for i in range(30)]
        assert weight_bytes(model) == pytest.approx(before, rel=0.02)  # as compressed as before


def test_the_mask_of_the_real_model_is_a_plain_one(shards: Shards) -> None:
    check_causal(stage(shards, 0), 64)
    check_causal(stage(shards, 1), 64)


def test_a_mask_that_weighs_distance_is_refused(changed: Callable[..., ov.Model]) -> None:
    model = changed(lambda mask: op.add(mask, op.constant(-0.25, ov.Type.f32)).output(0))
    with pytest.raises(CutError, match=r"the mask of attention .* says more than what came before"):
        to_static(model, static_shapes(LIMITS, kv="f32")[0], last=True)


def test_a_mask_that_closes_nothing_is_refused(changed: Callable[..., ov.Model]) -> None:
    with pytest.raises(CutError, match="says more"):
        check_causal(changed(lambda mask: op.multiply(mask, op.constant(0.0, ov.Type.f32)).output(0)), 64)


def test_positions_that_are_read_together_are_refused(shards: Shards) -> None:
    model = stage(shards, 1)
    positions = find_input(model, "position_ids")
    assert positions is not None
    stray = op.parameter([-1, -1], ov.Type.i64)
    least = op.reduce_min(stray.output(0), op.constant([1], ov.Type.i64), True)
    shifted = op.subtract(stray.output(0), least.output(0))
    redirect(positions.output(0), shifted.output(0))
    redirect(stray.output(0), positions.output(0))
    with pytest.raises(CutError, match=r"\(ReduceMin\) reads the positions of all tokens together"):
        check_positions(model)


def test_a_shard_with_states_is_nothing_for_an_npu(shards: Shards) -> None:
    with pytest.raises(CutError, match="an NPU"):
        check_npu(stage(shards, 0))


def test_split_says_in_the_manifest_what_its_shards_were_made_for(demo_model: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner  # noqa: PLC0415

    from engine.contract.manifest import load_manifest  # noqa: PLC0415
    from export_tools.cli import app  # noqa: PLC0415

    words = ["split", str(demo_model), "--stages", "2", "--out", str(tmp_path / "out"), "--static", "--context", "64"]
    assert CliRunner().invoke(app, [*words, "--prefill-chunk", "32"]).exit_code == 0
    assert load_manifest(tmp_path / "out").static == replace(LIMITS, slots=4)
    bad = CliRunner().invoke(app, [*words, "--force", "--prefill-chunk", "65"])
    assert bad.exit_code != 0
    assert "--prefill-chunk 65" in " ".join(bad.output.split())
    report = CliRunner().invoke(app, ["verify", str(tmp_path / "out"), "--runner", "static"])
    assert report.exit_code == 0, report.output
