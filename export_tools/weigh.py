# pyright: basic
"""How many bytes of weights each layer, the embedding and the head have."""

import openvino as ov

from export_tools.passes.boundaries import find_boundaries
from export_tools.passes.graph import ancestors, kind, name
from export_tools.passes.head import find_head
from export_tools.plan import Weights


def weigh(model: ov.Model) -> Weights:
    """Bytes per part. What a layer reads first belongs to it; what lies before layer 0's norm is the embedding."""
    found = find_boundaries(model)
    head = find_head(model)
    edges = [node.output(0).get_node() for node in found.cuts]
    seen: set[str] = set()
    sizes = [_new_bytes(edge, seen) for edge in edges]
    sizes.append(_new_bytes(head.input_value(0).get_node(), seen))
    embedding = _embedding_bytes(model)
    sizes[0] -= embedding
    return Weights(tuple(sizes), embedding, _bytes(ancestors([head.input_value(1).get_node()])))


def _new_bytes(end: ov.Node, seen: set[str]) -> int:
    new = [node for node in ancestors([end]) if name(node) not in seen]
    seen.update(name(node) for node in new)
    return _bytes(new)


def _bytes(nodes: list[ov.Node]) -> int:
    return sum(node.get_byte_size() for node in nodes if kind(node) == "Constant")


def _embedding_bytes(model: ov.Model) -> int:
    """The largest table that is gathered by the token ids."""
    tables = [
        _bytes(ancestors([node.input_value(0).get_node()]))
        for node in model.get_ops()
        if kind(node) == "Gather" and _reads_token_ids(node.input_value(1).get_node())
    ]
    return max(tables, default=0)


def _reads_token_ids(node: ov.Node) -> bool:
    while kind(node) == "Convert":
        node = node.input_value(0).get_node()
    return kind(node) == "Parameter" and "input_ids" in node.output(0).get_names()
