# pyright: basic
"""Turn a stateful shard into a static one, as an NPU wants it: fixed shapes, no state, the KV cache as ports.

The cache becomes inputs `past.i`, [1, KV heads, columns, head size], and what the new tokens add to it outputs
`present.i`, [1, KV heads, tokens, head size]: the host puts these into the columns it likes. The input `mask`, float32
[1, 1, tokens, columns + tokens], is added to the scores of every attention and says which column each token sees: so
several sequences share one inference, and for each the columns of the others are as good as not there.
"""

from dataclasses import dataclass, replace
from typing import Final

import openvino as ov
from openvino import opset13 as op
from openvino.passes import ConstantFolding, Manager

from engine.contract.errors import CutError
from engine.contract.static import StaticLimits
from export_tools.passes.boundaries import ATTENTION
from export_tools.passes.causal import MASK_INPUT, check_causal, check_positions
from export_tools.passes.graph import ancestors, children, copy_rt_info, kind, name, redirect, variable
from export_tools.passes.head import PICKED_INPUT, pick_before_head
from export_tools.passes.npu import check_npu
from export_tools.passes.shapes import HIDDEN_INPUT, mend_broadcasts

CLOSED: Final = -65504.0  # in `mask`; the least number of 16 bits, and e to that power is 0 exactly
MASK: Final = "mask"
PAST: Final = "past."
PRESENT: Final = "present."
LABELS: Final = ("input_ids", HIDDEN_INPUT, "position_ids", MASK, PICKED_INPUT)  # the other inputs
TOKEN_AXIS: Final = 2  # of a cache
_FOLDED: Final = ("i64", "i32", "f32", "boolean")  # other constants are compressed weights, which stay as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticShape:
    """The sizes of one static graph."""

    tokens: int  # of one inference, of all sequences together
    columns: int  # of the cache, of all sequences together
    context: int  # tokens that a sequence sees at most
    picked: int = 0  # on the last stage: positions that the head is applied to; 0: to all tokens
    kv: str = "f32"  # or f16: element type of past and present


def static_shapes(limits: StaticLimits, *, kv: str) -> tuple[StaticShape, ...]:
    """The graphs of a shard: a token and its drafts of every slot; a piece of one prompt."""
    short = StaticShape(tokens=limits.lanes, columns=limits.columns, context=limits.context, kv=kv)
    if not limits.prefill_chunk:
        return (short,)
    return short, replace(short, tokens=limits.prefill_chunk, picked=limits.verify_tokens)


def to_static(model: ov.Model, shape: StaticShape, *, last: bool) -> ov.Model:
    """A static twin of a stateful shard; consumes `model`.

    Inputs: input_ids int64 [1, tokens] or inputs_embeds float32 [1, tokens, hidden], position_ids int64 [1, tokens],
    mask, past.i, and on the last stage, where `picked` is given, picked int64 [picked]. Outputs: hidden_states or
    logits, then present.i in the order of past.i. Must run on a shard whose weights are compressed already, if they
    are to be: compressing changes shapes back. Raises CutError that names what keeps the shard from being static.
    """
    check_causal(model, shape.context)
    mend_broadcasts(model)
    if last and shape.picked:
        pick_before_head(model, axis=1)
    mask = _input(MASK, [1, 1, shape.tokens, shape.columns + shape.tokens], ov.Type.f32)
    for node in model.get_ops():
        if kind(node) == ATTENTION:
            node.input(MASK_INPUT).replace_source_output(mask.output(0))
    check_positions(model)
    results = [*model.get_results(), *_caches_to_ports(model, shape)]
    inputs = [node for node in ancestors(results) if kind(node) == "Parameter"]
    static = ov.Model(results, inputs, model.get_friendly_name())  # pyright: ignore[reportGeneralTypeIssues]
    copy_rt_info(model, static)
    for node in inputs:
        _fix(node, shape)
    static.validate_nodes_and_infer_types()
    _fold(static)
    _drop_inputs(static)
    check_npu(static)
    return static


def _input(label: str, dims: list[int], element: ov.Type) -> ov.Node:
    node = op.parameter(dims, element, name=label)
    node.output(0).set_names({label})
    return node


def _caches_to_ports(model: ov.Model, shape: StaticShape) -> list[ov.Node]:
    """Every cache becomes a pair of ports; returns the results of these. Raises CutError for other states."""
    element = {"f32": ov.Type.f32, "f16": ov.Type.f16}[shape.kv]
    sinks = {variable(sink): sink for sink in model.get_sinks()}
    results = []
    for i, read in enumerate([node for node in model.get_ordered_ops() if kind(node) == "ReadValue"]):
        old, new = _parts(sinks[variable(read)].input_value(0).get_node(), read)
        _, heads, _, size = new.get_partial_shape()
        past = _input(f"{PAST}{i}", [1, heads.get_length(), shape.columns, size.get_length()], element)
        redirect(old, _as(past.output(0), new.get_element_type()))
        results.append(op.result(_as(new, element)))
        results[-1].output(0).set_names({f"{PRESENT}{i}"})
    return results


def _parts(joined: ov.Node, read: ov.Node) -> tuple[ov.Output, ov.Output]:
    """What a cache held, and what is added to it: the operands of its Concat."""
    if kind(joined) == "Concat" and joined.get_input_size() == 2:
        old, new = joined.input_value(0), joined.input_value(1)
        dims = list(new.get_partial_shape())
        inside = len(dims) == 4 and dims[1].is_static and dims[3].is_static
        grows = joined.get_attributes()["axis"] in (TOKEN_AXIS, TOKEN_AXIS - 4)
        if inside and grows and name(read) in {name(node) for node in ancestors([old.get_node()])}:
            return old, new
    raise CutError(
        f"the state {variable(read)} is no cache [batch, heads, tokens, size] that grows by a Concat: "
        f"{joined.get_friendly_name()} ({kind(joined)}); run this shard with --runner stateful"
    )


def _as(output: ov.Output, element: ov.Type) -> ov.Output:
    return output if output.get_element_type() == element else op.convert(output, element.get_type_name()).output(0)


def _fix(node: ov.Node, shape: StaticShape) -> None:
    """Give an input of the shard its size."""
    names, dims = node.output(0).get_names(), list(node.get_partial_shape())
    fixed = {
        "input_ids": [1, shape.tokens],
        "position_ids": [1, shape.tokens],
        HIDDEN_INPUT: [1, shape.tokens, dims[-1]],
        "attention_mask": [1, shape.columns + shape.tokens],
        "beam_idx": [1],
        PICKED_INPUT: [shape.picked],
    }
    for label in names & set(fixed):
        node.set_partial_shape(ov.PartialShape(fixed[label]))


def _fold(model: ov.Model) -> None:
    """Compute what only shapes decide. Weights keep their compressed types: folding would unpack them."""
    weights = []
    for node in model.get_ops():
        if kind(node) == "Constant" and node.get_output_element_type(0).get_type_name() not in _FOLDED:
            mark = op.parameter(node.get_output_shape(0), node.get_output_element_type(0))
            redirect(node.output(0), mark.output(0))
            weights.append((node, mark))
    model.add_parameters([mark for _, mark in weights])
    folding = Manager()
    folding.register_pass(ConstantFolding())
    folding.run_passes(model)
    for node, mark in weights:
        redirect(mark.output(0), node.output(0))
        model.remove_parameter(mark)
    model.validate_nodes_and_infer_types()


def _drop_inputs(model: ov.Model) -> None:
    """Inputs that only shapes were read of. Raises CutError when the attention mask itself is still read."""
    for node in model.get_parameters():
        if not children(node):
            model.remove_parameter(node)
        elif "attention_mask" in node.output(0).get_names():
            reader = children(node)[0]
            raise CutError(
                f"{reader.get_friendly_name()} ({kind(reader)}) reads the attention mask for something else than "
                "attention: run this shard with --runner paged or stateful"
            )
