# pyright: basic
"""Cut the layers [first, last) out of a stateful decoder, or of a shard: exactly its operations and weights (D1).

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
from export_tools.passes.shapes import BATCH, HIDDEN_INPUT, NEW, PAST, labelled_shapes

ReadModel = Callable[[], ov.Model]


def cut(read: ReadModel, first: int, last: int) -> ov.Model:
    """The layers [first, last) as a model of their own. `read` gives a fresh copy of the whole at each call.

    Raises CutError: not a range of layers, or a value (not only a shape) is read across the cut.
    """
    model = read()
    found = find_boundaries(model)
    texts = {name(node) for node in model.get_parameters() if node.output(0).get_names() & {"input_ids", HIDDEN_INPUT}}
    if not 0 <= first < last <= found.layers:
        raise CutError(f"layers [{first}, {last}) of a model with {found.layers} layers")
    caches = caches_by_layer(model, found)
    mine = {variable(node) for layer in range(first, last) for node in caches.get(layer, [])}
    sinks = [sink for sink in model.get_sinks() if variable(sink) in mine]
    results = model.get_results()
    if last < found.layers:
        results = [_named_result(found.cuts[last - 1].output(0))]
    if first > 0:
        hidden = _start_at(found.cuts[first - 1].output(0))
        left = _left_of_cut(model, mine, texts)
        _rebuild_shapes([*results, *sinks], left, _sizes(hidden, model), labelled_shapes(read()))
    kept = ancestors([*results, *sinks])
    _check_inside(kept, mine, texts if first else set(), (first, last))
    inputs = [node for node in kept if kind(node) == "Parameter"]
    shard = ov.Model(results, sinks, inputs, f"layers_{first}_{last}")  # pyright: ignore[reportGeneralTypeIssues]
    copy_rt_info(model, shard)
    return shard


def caches_by_layer(model: ov.Model, found: Boundaries) -> dict[int, list[ov.Node]]:
    """ReadValue nodes of each layer: those that lead to its attention op, and to none of an earlier layer.

    Raises CutError for the state of a recurrent layer.
    """
    index = found.index
    caches: dict[int, list[ov.Node]] = {}
    for node in model.get_ordered_ops():
        if kind(node) == "ReadValue":
            _check_grows(node)
            caches.setdefault(_layer_of(node, index), []).append(node)
    return caches


def _check_grows(cache: ov.Node) -> None:
    """Only what grows with the text can be rewound after rejected drafts, and shared by its beginning."""
    _, *dims = cache.get_output_partial_shape(0)
    if not any(dim.is_dynamic for dim in dims):
        readers = [child for child in data_children(cache) if kind(child) not in ("Assign", "Gather")]
        reader = next(iter(readers or data_children(cache)), cache)
        raise CutError(
            f"the state {variable(cache)}, read by {reader.get_friendly_name()} ({kind(reader)}), is not a KV cache: "
            "models with state-space, convolution or linear-attention layers are not supported"
        )


def _layer_of(cache: ov.Node, index: dict[str, int]) -> int:
    """The first layer that reads a cache; others may share it."""
    todo, seen, found = [cache], set(), set()
    while todo:
        node = todo.pop()
        if name(node) in index:
            found.add(index[name(node)])
            continue
        for child in data_children(node):
            if kind(child) != "Assign" and name(child) not in seen:
                seen.add(name(child))
                todo.append(child)
    if not found:
        raise CutError(f"the state {variable(cache)} leads to no attention operation: this kind of layer cannot be cut")
    return min(found)


def _named_result(output: ov.Output) -> ov.Node:
    result = op.result(output)
    result.output(0).set_names({"hidden_states"})
    return result


def _start_at(edge: ov.Output) -> ov.Node:
    """Feed what is right of `edge` from a new input, which is returned."""
    hidden = op.parameter(edge.get_partial_shape(), edge.get_element_type(), name=HIDDEN_INPUT)
    hidden.output(0).set_names({HIDDEN_INPUT})
    redirect(edge, hidden.output(0))
    return hidden


def _rebuild_shapes(
    ends: list[ov.Node], left: set[str], sizes: dict[int, ov.Node], labels: dict[str, list[int]]
) -> None:
    """Reads of shapes of tensors that stay on the left, made anew from the shard's own inputs."""
    for node in ancestors(ends):
        if kind(node) == "ShapeOf" and name(node.input_value(0).get_node()) in left:
            dims = [sizes[dim] if dim in sizes else _i64(dim) for dim in labels[node.get_friendly_name()]]
            shape = op.convert(op.concat(dims, 0), node.get_output_element_type(0).get_type_name())
            redirect(node.output(0), shape.output(0))


def _sizes(hidden: ov.Node, model: ov.Model) -> dict[int, ov.Node]:
    """Batch, new, past and total tokens as i64 [1], from the shard's own inputs."""
    mask = find_input(model, "attention_mask")
    if mask is None:
        raise CutError("the model has no input 'attention_mask': it is not a stateful text decoder")
    sizes = {BATCH: _size(hidden, 0), NEW: _size(hidden, 1), PAST + NEW: _size(mask, 1)}
    sizes[PAST] = op.subtract(sizes[PAST + NEW], sizes[NEW])
    return sizes


def _size(node: ov.Node, axis: int) -> ov.Node:
    return op.gather(op.shape_of(node.output(0)), _i64(axis), op.constant(0, ov.Type.i64))


def _i64(value: int) -> ov.Node:
    return op.constant([value], ov.Type.i64)


def _left_of_cut(model: ov.Model, mine: set[str], texts: set[str]) -> set[str]:
    """Names of all nodes computed, over values, from the inputs `texts` or from caches of other stages."""
    left: set[str] = set()
    for node in model.get_ordered_ops():
        source = kind(node) == "ReadValue" and variable(node) not in mine
        source = source or name(node) in texts
        if source or (kind(node) != "ShapeOf" and any(name(parent) in left for parent in parents(node))):
            left.add(name(node))
    return left


def _check_inside(kept: list[ov.Node], mine: set[str], texts: set[str], layers: tuple[int, int]) -> None:
    first, last = layers
    for node in kept:
        if kind(node) == "ReadValue" and variable(node) not in mine:
            readers = [child.get_friendly_name() for child in data_children(node)]
            raise CutError(
                f"layers [{first}, {last}) read the cache {variable(node)} of another stage in {readers[0]}: "
                "layers that share a cache must be on one stage"
            )
    for node in kept:  # behind the caches: who reads those of the left reads their inputs too
        if name(node) in texts:
            readers = [child.get_friendly_name() for child in data_children(node)]
            raise CutError(f"layers [{first}, {last}) read the model's input in {readers[0]}: cannot be cut there")
