"""A head of fewer rows says the same of the tokens that are left, and nothing else changes. Models of a few weights."""

from collections.abc import Callable

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from engine.contract.errors import CutError
from export_tools.passes.narrow_head import narrow_head

VOCABULARY, HIDDEN, GROUPS = 40, 8, 2
ROWS = np.array([7, 0, 39, 12, 13], np.int32)
RANDOM = np.random.default_rng(0)


def f32() -> ov.Node:
    return op.constant(RANDOM.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32))


def f16() -> ov.Node:
    return op.convert(op.constant(RANDOM.standard_normal((VOCABULARY, HIDDEN)).astype(np.float16)), "f32")


def compressed(kind: ov.Type, *, group: int = 0) -> ov.Node:
    """Weights less zero points, times scales: per row, or per group of a row and then reshaped."""
    shape = [VOCABULARY, HIDDEN // group, group] if group else [VOCABULARY, HIDDEN]
    per_row = [*shape[:-1], 1]

    def integers(shape: list[int]) -> ov.Node:
        data = RANDOM.integers(0, 256, int(np.prod(shape)) * kind.bitwidth // 8).astype(np.uint8)
        return op.convert(op.constant(ov.Tensor(data, ov.Shape(shape), kind), shared_memory=False), "f16")

    scale = op.constant(RANDOM.random(per_row).astype(np.float16))
    value = op.multiply(op.subtract(integers(shape), integers(per_row)), scale)
    if group:
        value = op.reshape(value, np.array([VOCABULARY, HIDDEN]), special_zero=False)
    return op.convert(value, "f32")


def tied(weight: ov.Node, *, bias: bool = False) -> ov.Model:
    """Token ids in, their embeddings through the same weight out."""
    ids = op.parameter([-1], ov.Type.i32, name="ids")
    hidden = op.tanh(op.gather(weight, ids, np.int64(0)))
    logits = op.matmul(hidden, weight, transpose_a=False, transpose_b=True)
    if bias:
        logits = op.add(logits, op.constant(np.ones(VOCABULARY, np.float32)))
    return ov.Model([op.result(logits)], [ids], "tied")  # pyright: ignore[reportGeneralTypeIssues]


def logits(model: ov.Model) -> np.ndarray:
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled(np.arange(VOCABULARY, dtype=np.int32))[0]


WEIGHTS = {
    "f32": f32,
    "f16": f16,
    "u8": lambda: compressed(ov.Type.u8),
    "i8": lambda: compressed(ov.Type.i8),
    "u8 in groups": lambda: compressed(ov.Type.u8, group=4),
    "u4 in groups": lambda: compressed(ov.Type.u4, group=4),
}


@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_rows_that_are_kept_say_what_they_said_in_the_whole_head(weight: Callable[[], ov.Node]) -> None:
    model = tied(weight())
    whole = logits(model)
    narrow_head(model, ROWS)
    assert np.array_equal(logits(model), whole[:, ROWS])


def refused(model: ov.Model, rows: np.ndarray = ROWS) -> str:
    with pytest.raises(CutError) as caught:
        narrow_head(model, rows)
    assert list(model.output(0).get_partial_shape())[-1].get_length() == VOCABULARY
    return str(caught.value)


def test_a_bias_behind_the_head_is_refused() -> None:
    assert "behind the head, depends on the size of the vocabulary" in refused(tied(f32(), bias=True))


def test_a_weight_that_passes_through_an_unknown_operation_is_refused_by_name() -> None:
    weight = op.abs(f32())
    weight.set_friendly_name("absolute")
    assert "absolute (Abs)" in refused(tied(weight))


def test_packed_rows_that_end_within_a_byte_are_refused() -> None:
    assert "(u4) do not end with a byte" in refused(tied(compressed(ov.Type.u4)))  # one zero point a row: four bits


@pytest.mark.parametrize("rows", [[], [VOCABULARY], [-1]])
def test_rows_that_are_not_there_are_refused(rows: list[int]) -> None:
    assert "no such rows" in refused(tied(f32()), np.array(rows, np.int32))


def test_a_weight_the_other_way_round_is_refused() -> None:
    ids = op.parameter([-1, HIDDEN], ov.Type.f32, name="hidden")
    weight = op.constant(np.ones((HIDDEN, VOCABULARY), np.float32))
    product = op.matmul(ids, weight, transpose_a=False, transpose_b=False)
    model = ov.Model([op.result(product)], [ids], "other")  # pyright: ignore[reportGeneralTypeIssues]
    assert "is not [tokens, hidden] x [vocabulary, hidden]" in refused(model)
