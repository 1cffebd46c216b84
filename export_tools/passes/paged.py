# pyright: basic
"""Turn a stateful shard into a paged one: OpenVINO's SDPAToPagedAttention, and what it leaves undone (D2, D3)."""

import openvino as ov
from openvino._offline_transformations import paged_attention_transformation

from engine.contract.errors import CutError
from export_tools.passes.boundaries import ATTENTION
from export_tools.passes.graph import find_input, kind

PAGED = "PagedAttentionExtension"


def to_paged(model: ov.Model) -> None:
    """Replace every attention and its cache by paged attention. Changes `model`. Raises CutError.

    Inputs afterwards: input_ids int64 [tokens] or inputs_embeds float32 [tokens, hidden], position_ids int64 [tokens],
    past_lens, subsequence_begins, block_indices, block_indices_begins int32, max_context_len int32 [], and per layer
    key_cache.i, value_cache.i. The pass leaves inputs_embeds at [?, ?]; then the first norm does not fuse and stages no
    longer equal the whole to the last bit, so its hidden size is set again here.
    """
    hidden = find_input(model, "inputs_embeds")
    width = list(hidden.get_partial_shape())[-1] if hidden is not None else None
    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise CutError(f"OpenVINO cannot make this shard paged: {str(error).strip().splitlines()[-1]}") from error
    if hidden is not None:
        hidden.set_partial_shape(ov.PartialShape([-1, width]))
        model.validate_nodes_and_infer_types()
    states = [node.get_friendly_name() for node in model.get_ops() if kind(node) == "ReadValue"]
    if states:  # one state for all sequences
        raise CutError(f"the state {states[0]} did not become paged: run this shard with --runner stateful")
    left = [node.get_friendly_name() for node in model.get_ops() if kind(node) == ATTENTION]
    if left:
        raise CutError(f"attention {left[0]} did not become paged: run this shard with --runner stateful")
