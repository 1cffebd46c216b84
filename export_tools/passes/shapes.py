# pyright: basic
"""What the dimensions behind a ShapeOf mean: batch, new tokens, past tokens, or a number.

Right of a cut the graph still reads shapes of tensors that stay on the left. A copy of the model is reshaped to
distinct primes; wherever one of them comes out, its meaning is known and it can be rebuilt from other inputs.
"""

from typing import Final

import openvino as ov
from openvino import opset13 as op

from engine.contract.errors import CutError
from export_tools.passes.graph import kind, parents, redirect

BATCH: Final = 1009
NEW: Final = 1013
PAST: Final = 1019
HIDDEN_INPUT: Final = "inputs_embeds"
_INPUTS: Final = {
    "input_ids": [BATCH, NEW],
    "position_ids": [BATCH, NEW],
    "attention_mask": [BATCH, PAST + NEW],
    "beam_idx": [BATCH],
}


def shape_reads(model: ov.Model) -> list[ov.Node]:
    """All ShapeOf nodes, also those that only the caches' initial values use."""
    return [node for node in model.get_ordered_ops() if kind(node) == "ShapeOf"]


def labelled_shapes(model: ov.Model) -> dict[str, list[int]]:
    """{friendly name of a ShapeOf: the dimensions it reads, dynamic ones as the primes above}. Consumes `model`."""
    for parameter in model.get_parameters():
        names = parameter.output(0).get_names()
        if HIDDEN_INPUT in names:  # of a shard that is cut again
            shape = [BATCH, NEW, list(parameter.get_partial_shape())[-1].get_length()]
        elif known := names & set(_INPUTS):
            shape = _INPUTS[known.pop()]
        else:
            raise CutError(
                f"unknown input {parameter.get_friendly_name()}: a stateful text decoder has {list(_INPUTS)}"
            )
        parameter.set_partial_shape(ov.PartialShape(shape))
    reads = shape_reads(model)
    model.add_results([op.result(node.output(0)) for node in reads])
    caches = []
    for node in model.get_ordered_ops():
        if kind(node) == "ReadValue":
            caches.append(_replace_by_input(node))
    mend_broadcasts(model)
    for sink in list(model.get_sinks()):
        model.remove_sink(sink)
    model.add_parameters(caches)
    model.validate_nodes_and_infer_types()
    return {node.get_friendly_name(): _dimensions(node) for node in reads}


def _replace_by_input(read: ov.Node) -> ov.Node:
    dims = list(read.get_output_partial_shape(0))
    shape = [BATCH, *(PAST if dim.is_dynamic else dim.get_length() for dim in dims[1:])]
    cache = op.parameter(shape, read.get_output_element_type(0))
    redirect(read.output(0), cache.output(0))
    return cache


def mend_broadcasts(model: ov.Model) -> None:
    """Repair what repeats KV heads in openvino-genai's GGUF graphs: its target has a length of 0 where 1 is meant.

    The fused attention never looks at it; static shape inference and unfused execution fail on it. Changes `model`.
    """
    for node in model.get_ordered_ops():
        if kind(node) == "Broadcast" and node.get_attributes()["mode"] == "bidirectional":
            _mend_target(node)


def _mend_target(broadcast: ov.Node) -> None:
    for part in parents(broadcast.input_value(1).get_node()):
        if kind(part) == "Constant" and part.get_data().tolist() == [0]:
            one = op.constant([1], ov.Type.i64)
            for target in list(part.output(0).get_target_inputs()):
                if kind(target.get_node()) == "Concat":
                    target.replace_source_output(one.output(0))


def _dimensions(read: ov.Node) -> list[int]:
    shape = read.get_input_partial_shape(0)
    if shape.is_dynamic:
        raise CutError(f"the shape read by {read.get_friendly_name()} stays unknown: {shape}")
    return [dim.get_length() for dim in shape]
