# pyright: basic
"""Is a shard's attention mask a plain causal one, and does each token see only its own position?

A static shard gets its mask from outside, and packs several sequences into one inference. Both are right only where the
model's own mask says nothing but "what came before", and where nothing is computed from the positions of all tokens
together. The mask is not recognised by its operations but computed, on the CPU, and compared.
"""

from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as op

from engine.contract.errors import CutError
from export_tools.passes.boundaries import ATTENTION
from export_tools.passes.graph import ancestors, data_children, find_input, kind, name, redirect
from export_tools.passes.shapes import HIDDEN_INPUT, mend_broadcasts

MASK_INPUT: Final = 3  # of the attention operation
NEW: Final = 3  # tokens of the sample
CLOSED: Final = -1e4  # whatever is added to a score and is less than that closes a column
_COUNTING: Final = ("Range", "CumSum")
_MIXING: Final = ("If", "Loop", "TopK", "CumSum", "ScatterUpdate")


def check_causal(model: ov.Model, context: int) -> None:
    """Every mask opens exactly the tokens before, in sequences of up to `context` tokens. Raises CutError."""
    own = model.clone()
    mend_broadcasts(own)
    found = {}
    for node in own.get_ordered_ops():
        if kind(node) == ATTENTION:
            if node.get_attributes().get("causal") or node.get_input_size() <= MASK_INPUT:
                raise CutError(f"attention {node.get_friendly_name()} takes no mask: it cannot be packed")
            found.setdefault(name(node.input_value(MASK_INPUT).get_node()), node)
    wanted = np.tril(np.ones((NEW, context), np.int8), context - NEW)
    for node, mask in zip(found.values(), _compute(own, list(found.values()), context), strict=True):
        if mask.shape != (1, 1, *wanted.shape) or not np.array_equal(_opened(mask[0, 0]), wanted):
            raise CutError(
                f"the mask of attention {node.get_friendly_name()} says more than what came before, within {context} "
                "tokens (a sliding window, or a bias by distance): run this shard with --runner paged or stateful"
            )


def check_positions(model: ov.Model) -> None:
    """No value is made of several tokens' positions: a neighbour would change it. Raises CutError.

    Must run once the masks are replaced: these count positions too.
    """
    positions = find_input(model, "position_ids")
    if positions is None:
        counted = any(kind(node) in _COUNTING for node in ancestors([*model.get_results(), *model.get_sinks()]))
        if counted or find_input(model, HIDDEN_INPUT) is None:
            raise CutError("the model has no input 'position_ids': it cannot be told where a packed token stands")
        return  # a later stage of a model that adds positions to its embedding
    texts = [node for node in (find_input(model, "input_ids", HIDDEN_INPUT),) if node is not None]
    caches = [node for node in model.get_ops() if kind(node) == "ReadValue"]
    behind = _descendants([*texts, *caches])
    for found, node in _descendants([positions]).items():
        if found not in behind and (kind(node).startswith("Reduce") or kind(node) in _MIXING):
            raise CutError(
                f"{node.get_friendly_name()} ({kind(node)}) reads the positions of all tokens together, so neighbours "
                "would change each other: run this shard with --runner paged or stateful"
            )


def _descendants(roots: list[ov.Node]) -> dict[str, ov.Node]:
    todo, found = list(roots), {}
    while todo:
        for child in data_children(todo.pop()):
            if name(child) not in found:
                found[name(child)] = child
                todo.append(child)
    return found


def _opened(mask: np.ndarray) -> np.ndarray:
    """Which columns a mask opens: 1, or 0; -1 where it adds something else to a score."""
    if mask.dtype == bool:
        return mask.astype(np.int8)
    return np.where(mask == 0, 1, np.where(mask < CLOSED, 0, -1))


def _compute(model: ov.Model, attention: list[ov.Node], context: int) -> list[np.ndarray]:
    """The masks of a row of NEW tokens at the end of `context`. Consumes `model`."""
    for node in model.get_ordered_ops():
        if kind(node) == "ReadValue":
            cache = op.parameter(node.get_output_partial_shape(0), node.get_output_element_type(0))
            redirect(node.output(0), cache.output(0))
    results = [op.result(node.input_value(MASK_INPUT)) for node in attention]
    inputs = [node for node in ancestors(results) if kind(node) == "Parameter"]
    masks = ov.Model(results, inputs, "masks")  # pyright: ignore[reportGeneralTypeIssues]
    compiled = ov.Core().compile_model(masks, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        request.set_tensor(port, ov.Tensor(_sample(port, context)))
    request.infer()
    return [request.get_output_tensor(i).data.copy() for i in range(len(attention))]


def _sample(port: Any, context: int) -> np.ndarray:
    element = port.get_element_type().to_dtype()
    names = port.get_names()
    if "attention_mask" in names:
        return np.ones((1, context), element)
    if "position_ids" in names:
        return np.arange(context - NEW, context, dtype=element)[None]
    dims = list(port.get_partial_shape())
    lengths = [dim.get_length() if dim.is_static else 0 for dim in dims]
    lengths[0] = 1
    if len(dims) > 1 and dims[1].is_dynamic:
        lengths[1] = NEW  # input_ids, inputs_embeds
    free = [axis for axis, length in enumerate(lengths) if not length]
    for axis in free:  # a cache
        lengths[axis] = context - NEW
    return np.zeros(lengths, element)
