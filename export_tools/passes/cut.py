# pyright: basic
"""Cut the layers [first, last) out of a stateful decoder: exactly its operations, weights and settings (D1).

Inputs of the shard: input_ids (first stage) or inputs_embeds, float32 [batch, tokens, hidden] (the paged pass insists
on that name), attention_mask, position_ids, beam_idx as far as it uses them. Output: hidden_states or logits.
"""

from collections.abc import Callable

import openvino as ov
from openvino import opset13 as op

from engine.contract.errors import CutError
from export_tools.passes.boundaries import Boundaries, find_boundaries
from export_tools.passes.graph import (
    ancestors,
    copy_rt_info,
    data_children,
    find_input,
    kind,
    name,
    parents,
    redirect,
    variable,
)
from export_tools.passes.shapes import BATCH, NEW, PAST, labelled_shapes

ReadModel = Callable[[], ov.Model]


def cut(read: ReadModel, first: int, last: int) -> ov.Model:
    """The layers [first, last) as a model of their own. `read` gives a fresh copy of the whole at each call.

    Raises CutError: not a range of layers, or a value (not only a shape) is read across the cut.
    """
    model = read()
    found = find_boundaries(model)
    if not 0 <= first < last <= found.layers:
        raise CutError(f"layers [{first}, {last}) of a model with {found.layers} layers")
    caches = caches_by_layer(model, found)
    mine = {variable(node) for layer in range(first, last) for node in caches.get(layer, [])}
    sinks = [sink for sink in model.get_sinks() if variable(sink) in mine]
    results = model.get_results()
    if last < found.layers:
        results = [_named_result(found.cuts[last - 1].output(0))]
    if first > 0:
        _start_at(model, found.cuts[first - 1].output(0), [*results, *sinks], mine, labelled_shapes(read()))
    kept = ancestors([*results, *sinks])
    _check_inside(kept, mine, first, last)
    inputs = [node for node in kept if kind(node) == "Parameter"]
    shard = ov.Model(results, sinks, inputs, f"layers_{first}_{last}")  # pyright: ignore[reportGeneralTypeIssues]
    copy_rt_info(model, shard)
    return shard


def caches_by_layer(model: ov.Model, found: Boundaries) -> dict[int, list[ov.Node]]:
    """ReadValue nodes of each layer: those that lead to its attention op before any other. Raises CutError.

    A state that does not grow with the tokens is a recurrent layer's: rejected drafts cannot be taken out of it again,
    and neither runner keeps one per sequence.
    """
    index = found.index
    caches: dict[int, list[ov.Node]] = {}
    for node in model.get_ordered_ops():
        if kind(node) == "ReadValue":
            if not any(size.is_dynamic for size in list(node.get_output_partial_shape(0))[1:]):
                shape = node.get_output_partial_shape(0)
                raise CutError(
                    f"the state {variable(node)} of shape {shape} is that of a recurrent layer: not supported"
                )
            caches.setdefault(_layer_of(node, index), []).append(node)
    return caches


def _layer_of(cache: ov.Node, index: dict[str, int]) -> int:
    todo, seen = [cache], set()
    while todo:
        node = todo.pop(0)
        if name(node) in index:
            return index[name(node)]
        for child in data_children(node):
            if kind(child) != "Assign" and name(child) not in seen:
                seen.add(name(child))
                todo.append(child)
    raise CutError(f"the state {variable(cache)} leads to no attention operation: this kind of layer cannot be cut")


def _named_result(output: ov.Output) -> ov.Node:
    result = op.result(output)
    result.output(0).set_names({"hidden_states"})
    return result


def _start_at(
    model: ov.Model, edge: ov.Output, ends: list[ov.Node], mine: set[str], labels: dict[str, list[int]]
) -> None:
    """Feed the shard from a new input at `edge`; rebuild reads of shapes that stay on the left from its own inputs."""
    hidden = op.parameter(edge.get_partial_shape(), edge.get_element_type(), name="inputs_embeds")
    hidden.output(0).set_names({"inputs_embeds"})
    redirect(edge, hidden.output(0))
    mask = find_input(model, "attention_mask")
    if mask is None:
        raise CutError("the model has no input 'attention_mask': it is not a stateful text decoder")
    sizes = _sizes(hidden, mask)
    left = _left_of_cut(model, mine)
    for node in ancestors(ends):
        if kind(node) == "ShapeOf" and name(node.input_value(0).get_node()) in left:
            dims = [sizes[dim] if dim in sizes else _i64(dim) for dim in labels[node.get_friendly_name()]]
            shape = op.convert(op.concat(dims, 0), node.get_output_element_type(0).get_type_name())
            redirect(node.output(0), shape.output(0))


def _sizes(hidden: ov.Node, mask: ov.Node) -> dict[int, ov.Node]:
    """Batch, new, past and total tokens as i64 [1], from the shard's own inputs."""
    sizes = {BATCH: _size(hidden, 0), NEW: _size(hidden, 1), PAST + NEW: _size(mask, 1)}
    sizes[PAST] = op.subtract(sizes[PAST + NEW], sizes[NEW])
    return sizes


def _size(node: ov.Node, axis: int) -> ov.Node:
    return op.gather(op.shape_of(node.output(0)), _i64(axis), op.constant(0, ov.Type.i64))


def _i64(value: int) -> ov.Node:
    return op.constant([value], ov.Type.i64)


def _left_of_cut(model: ov.Model, mine: set[str]) -> set[str]:
    """Names of all nodes computed, over values, from token ids or from caches of other stages."""
    left: set[str] = set()
    for node in model.get_ordered_ops():
        source = kind(node) == "ReadValue" and variable(node) not in mine
        source = source or (kind(node) == "Parameter" and "input_ids" in node.output(0).get_names())
        if source or (kind(node) != "ShapeOf" and any(name(parent) in left for parent in parents(node))):
            left.add(name(node))
    return left


def _check_inside(kept: list[ov.Node], mine: set[str], first: int, last: int) -> None:
    for node in kept:
        if kind(node) == "ReadValue" and variable(node) not in mine:
            readers = [child.get_friendly_name() for child in data_children(node)]
            raise CutError(
                f"layers [{first}, {last}) read the cache {variable(node)} of another stage in {readers[0]}: "
                "layers that share a cache must be on one stage"
            )
        if first > 0 and kind(node) == "Parameter" and "input_ids" in node.output(0).get_names():
            readers = [child.get_friendly_name() for child in data_children(node)]
            raise CutError(f"layers [{first}, {last}) read the token ids in {readers[0]}: cannot be cut there")
