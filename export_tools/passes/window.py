# pyright: basic
"""Do some layers see only the last so many tokens?"""

from typing import Final

import openvino as ov

from export_tools.passes.boundaries import ATTENTION
from export_tools.passes.graph import ancestors, kind

MASK_INPUT: Final = 3  # of the attention operation
_COMPARISONS: Final = ("Less", "LessEqual", "Greater", "GreaterEqual")


def has_window(model: ov.Model) -> bool:
    """Whether an attention mask has a second bound beside the causal one: it compares positions more than once.

    Must run before the paged pass. What counts are places in the cache: a place that holds a rejected token takes room
    in the window.
    """
    masks = [
        node.input_value(MASK_INPUT).get_node()
        for node in model.get_ops()
        if kind(node) == ATTENTION and node.get_input_size() > MASK_INPUT
    ]
    return any(sum(kind(node) in _COMPARISONS for node in ancestors([mask])) > 1 for mask in masks)
