# pyright: basic
"""Apply the head only to positions whose next token is wanted: a Gather of rows before its MatMul."""

import openvino as ov
from openvino import opset13 as op

from engine.contract.errors import CutError
from export_tools.passes.graph import kind, name

PICKED_INPUT = "picked"
_TOKEN_WISE = {"Add", "Multiply", "Divide", "Tanh", "Convert", "Reshape", "Result", "Subtract", "Clamp"}


def pick_before_head(model: ov.Model, *, axis: int) -> None:
    """Add the input `picked`, int64 [n]: which tokens, counted along `axis`, the head is applied to.

    `axis` is 0 on paged shards ([tokens, …]) and 1 on stateful ones ([1, tokens, hidden]). Must run on a shard that
    ends in logits, after the paged pass where that is applied. Changes `model`. Raises CutError without a head.
    """
    head = find_head(model)
    picked = op.parameter([-1], ov.Type.i64, name=PICKED_INPUT)
    picked.output(0).set_names({PICKED_INPUT})
    gather = op.gather(head.input_value(0), picked.output(0), op.constant(axis, ov.Type.i64))
    head.input(0).replace_source_output(gather.output(0))
    model.add_parameters([picked])
    model.validate_nodes_and_infer_types()


def find_head(model: ov.Model) -> ov.Node:
    """The MatMul that makes the logits: the only one behind the last norm. Raises CutError."""
    return path_to_head(model)[-1]


def path_to_head(model: ov.Model) -> list[ov.Node]:
    """Operations from the logits back to the head, which is the last of them. Raises CutError."""
    path = [model.get_results()[0].input_value(0).get_node()]
    while kind(path[-1]) != "MatMul":
        if kind(path[-1]) not in _TOKEN_WISE:
            raise CutError(f"no head: {path[-1].get_friendly_name()} ({kind(path[-1])}) lies between it and the logits")
        path.append(_data_input(path[-1]))
    return path


def _data_input(node: ov.Node) -> ov.Node:
    """The operand that carries tokens: the one that is not computed from constants alone."""
    for i in range(node.get_input_size()):
        operand = node.input_value(i).get_node()
        if not _constant(operand):
            return operand
    raise CutError(f"no head: {node.get_friendly_name()} reads constants only")


def _constant(node: ov.Node) -> bool:
    todo, seen = [node], set()
    while todo:
        here = todo.pop()
        if name(here) in seen:
            continue
        seen.add(name(here))
        if kind(here) in ("Parameter", "ReadValue", "PagedAttentionExtension"):
            return False
        todo += [here.input_value(i).get_node() for i in range(here.get_input_size())]
    return True
