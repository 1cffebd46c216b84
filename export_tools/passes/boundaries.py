# pyright: basic
"""Where a model can be cut: found in its structure, not by the names of an architecture.

Boundary i is the last post-dominator of attention op i, over data edges, that does not depend on attention op i + 1:
the one tensor that everything behind layer i goes through.
"""

from dataclasses import dataclass

import openvino as ov

from engine.contract.errors import CutError
from export_tools.passes.graph import data_children, data_parents, kind, name

ATTENTION = "ScaledDotProductAttention"


@dataclass(frozen=True)
class Boundaries:
    """Attention ops in order, and the node whose output crosses the cut behind each but the last."""

    attention: list[ov.Node]
    cuts: list[ov.Node]

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return len(self.attention)

    @property
    def index(self) -> dict[str, int]:
        """Layer of each attention op, by its unique name."""
        return {name(node): i for i, node in enumerate(self.attention)}


def find_boundaries(model: ov.Model) -> Boundaries:
    """Layer boundaries of a decoder. Raises CutError naming the attention op that has none."""
    order = model.get_ordered_ops()
    nodes = {name(node): node for node in order}
    attention = [node for node in order if kind(node) == ATTENTION]
    if not attention:
        states = [node for node in order if kind(node) == "ReadValue"]
        what = (
            f"its state {states[0].get_attributes()['variable_id']} is of another kind" if states else "nor any state"
        )
        raise CutError(
            f"no {ATTENTION} operation in this model, {what}: state-space models are not supported, "
            "models with attention want optimum-intel 1.20 or newer"
        )
    depth = _attention_depth(order, attention)
    after = _post_dominators(order, name(_logits(model)))
    cuts = []
    for i, node in enumerate(attention[:-1]):
        cuts.append(nodes[_last_before(name(node), i, depth, after)])
    return Boundaries(attention, cuts)


def _logits(model: ov.Model) -> ov.Node:
    results = model.get_results()
    if len(results) != 1:
        names = ", ".join(result.get_friendly_name() for result in results)
        raise CutError(f"the model has {len(results)} outputs ({names}), a decoder has one: its logits")
    return results[0]


def _attention_depth(order: list[ov.Node], attention: list[ov.Node]) -> dict[str, int]:
    """For every node, the last attention op it depends on; -1 for none."""
    nth = {name(node): i for i, node in enumerate(attention)}
    depth: dict[str, int] = {}
    for node in order:
        own = nth.get(name(node), -1)
        depth[name(node)] = max([own, *(depth[name(parent)] for parent in data_parents(node))])
    return depth


def _post_dominators(order: list[ov.Node], end: str) -> dict[str, str]:
    """Immediate post-dominators over data edges of all nodes that lead to `end`."""
    rank = {name(node): i for i, node in enumerate(order)}
    post = {end: end}

    def meet(a: str, b: str) -> str:
        while a != b:
            while rank[a] < rank[b]:
                a = post[a]
            while rank[b] < rank[a]:
                b = post[b]
        return a

    for node in reversed(order):
        heads = [name(child) for child in data_children(node) if name(child) in post]
        if name(node) == end or not heads:
            continue
        here = heads[0]
        for head in heads[1:]:
            here = meet(here, head)
        post[name(node)] = here
    return post


def _last_before(attention: str, layer: int, depth: dict[str, int], post: dict[str, str]) -> str:
    here, last = post.get(attention), None
    while here is not None and depth[here] <= layer and post[here] != here:
        last, here = here, post[here]
    if last is None:
        raise CutError(f"nothing separates layer {layer} from layer {layer + 1} behind {attention}")
    return last
