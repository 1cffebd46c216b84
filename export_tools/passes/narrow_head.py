# pyright: basic
"""Score only the tokens that matter: a draft's head spends most of its time on tokens that are hardly ever said."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as op

from engine.contract.errors import CutError
from export_tools.passes.graph import kind, parents
from export_tools.passes.head import path_to_head

WEIGHT_INPUT: Final = 1  # of the head's MatMul
_MOST_DIMENSIONS: Final = 8  # of a shape
_REBUILD: Final[dict[str, Callable[[ov.Node, list[ov.Output]], ov.Node]]] = {
    "Convert": lambda node, inputs: op.convert(inputs[0], node.get_element_type().to_string()),
    "Subtract": lambda _, inputs: op.subtract(*inputs),
    "Multiply": lambda _, inputs: op.multiply(*inputs),
    "Reshape": lambda node, inputs: op.reshape(*inputs, special_zero=node.get_attributes()["special_zero"]),
}


def narrow_head(model: ov.Model, rows: np.ndarray) -> None:
    """Keep only these rows (token ids, in this order) of the head's weight: `logits[..., i]` is token `rows[i]`'s.

    What the model reads stays whole, also where the embedding shares the weight. Must run on a shard that ends in
    logits, before or after the paged pass. Changes `model`, but not when it raises. Raises CutError.
    """
    *behind, head = path_to_head(model)
    weight = head.input_value(WEIGHT_INPUT)
    vocabulary = _vocabulary(head, weight)
    if rows.ndim != 1 or not len(rows) or rows.min() < 0 or rows.max() >= vocabulary:
        raise CutError(f"a head of {vocabulary} rows has no such rows: {len(rows)} ids")
    _check_behind(behind, vocabulary)
    narrow = _narrow(weight.get_node(), rows, vocabulary)
    head.input(WEIGHT_INPUT).replace_source_output(narrow.output(0))
    model.validate_nodes_and_infer_types()


def _vocabulary(head: ov.Node, weight: ov.Output) -> int:
    shape = weight.get_partial_shape()
    if not head.get_attributes()["transpose_b"] or shape.is_dynamic or len(shape) != 2:
        raise CutError(f"the head {head.get_friendly_name()} is not [tokens, hidden] x [vocabulary, hidden]")
    return shape[0].get_length()


def _check_behind(path: list[ov.Node], vocabulary: int) -> None:
    """Nothing between the head and the logits depends on how many there are: no bias, no Reshape to that width."""
    for node in path:
        for operand in parents(node):
            constant = operand if kind(operand) == "Constant" else next(iter(parents(operand)), operand)
            if kind(constant) == "Constant" and vocabulary in (*constant.get_output_shape(0), *_few(constant)):
                raise CutError(f"{node.get_friendly_name()}, behind the head, depends on the size of the vocabulary")


def _narrow(node: ov.Node, rows: np.ndarray, vocabulary: int) -> ov.Node:
    """A copy of what a weight is computed by, with only these rows."""
    if kind(node) == "Constant":
        return _slice(node, rows)
    rebuild = _REBUILD.get(kind(node))
    if rebuild is None or node.get_attributes().get("auto_broadcast", "numpy") != "numpy":
        raise CutError(f"the head's weight passes through {node.get_friendly_name()} ({kind(node)})")
    rank = len(node.get_output_shape(0))
    inputs: list[ov.Output] = []
    for at, parent in enumerate(parents(node)):
        shape = list(parent.get_output_shape(0))
        if kind(node) == "Reshape" and at == 1:
            replacement = _target(node, parent, rows, vocabulary)
        elif kind(node) == "Reshape" or (len(shape) == rank and shape[0] == vocabulary):
            replacement = _narrow(parent, rows, vocabulary)
        else:  # the same for every row
            replacement = parent
        inputs.append(replacement.output(0))
    copy = rebuild(node, inputs)
    copy.set_friendly_name(f"{node.get_friendly_name()}/narrow")
    for key, value in node.get_rt_info().items():  # marks of decompression
        copy.get_rt_info()[key] = value
    return copy


def _target(reshape: ov.Node, constant: ov.Node, rows: np.ndarray, vocabulary: int) -> ov.Node:
    """What a Reshape that only merges groups makes of fewer rows."""
    shapes = (reshape.input_value(0).get_shape(), reshape.get_output_shape(0))
    if kind(constant) != "Constant" or any(shape[0] != vocabulary for shape in shapes):
        raise CutError(f"the head's weight is reshaped by {reshape.get_friendly_name()} across its rows")
    return op.constant(np.array([len(rows), *list(reshape.get_output_shape(0))[1:]], np.int64))


def _slice(constant: ov.Node, rows: np.ndarray) -> ov.Node:
    """Some rows of a Constant, byte by byte: elements of four bits lie two to a byte, the rows one after the other."""
    shape, element = list(constant.get_output_shape(0)), constant.get_element_type()
    width = int(np.prod(shape[1:])) * element.bitwidth  # bits
    data = np.ascontiguousarray(constant.data)
    if width % 8 or data.nbytes * 8 != width * shape[0]:
        raise CutError(f"rows of {constant.get_friendly_name()} ({element.to_string()}) do not end with a byte")
    table = data.reshape(-1).view(np.uint8).reshape(shape[0], width // 8)
    kept = np.ascontiguousarray(table[rows])
    tensor = ov.Tensor(kept.reshape(-1), ov.Shape([len(rows), *shape[1:]]), element)
    copy = op.constant(tensor, shared_memory=False)
    copy.set_friendly_name(f"{constant.get_friendly_name()}/narrow")
    return copy


def _few(constant: ov.Node) -> list[Any]:
    """The values of a Constant small enough to be a shape."""
    values = np.asarray(constant.data).reshape(-1)
    return values.tolist() if len(values) <= _MOST_DIMENSIONS else []
