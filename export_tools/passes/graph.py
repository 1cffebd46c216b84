# pyright: basic
"""Words for walking an OpenVINO graph. A data edge is one that carries values: a ShapeOf only looks at a shape."""

from collections.abc import Iterable

import openvino as ov


def kind(node: ov.Node) -> str:
    """Operation type, e.g. "MatMul"."""
    return node.get_type_name()


def name(node: ov.Node) -> str:
    """Unique name within a model; nodes themselves have no stable identity in Python."""
    return node.get_name()


def parents(node: ov.Node) -> list[ov.Node]:
    """Nodes whose outputs a node reads."""
    return [node.input_value(i).get_node() for i in range(node.get_input_size())]


def children(node: ov.Node) -> list[ov.Node]:
    """Nodes that read a node's outputs."""
    return [target.get_node() for output in node.outputs() for target in output.get_target_inputs()]


def data_parents(node: ov.Node) -> list[ov.Node]:
    """Parents over data edges."""
    return [] if kind(node) == "ShapeOf" else parents(node)


def data_children(node: ov.Node) -> list[ov.Node]:
    """Children over data edges."""
    return [child for child in children(node) if kind(child) != "ShapeOf"]


def ancestors(ends: Iterable[ov.Node]) -> list[ov.Node]:
    """The ends and everything they are computed from."""
    todo, seen, found = list(ends), set(), []
    while todo:
        node = todo.pop()
        if name(node) not in seen:
            seen.add(name(node))
            found.append(node)
            todo += parents(node)
    return found


def variable(node: ov.Node) -> str:
    """Id of the state that a ReadValue or Assign belongs to."""
    return node.get_attributes()["variable_id"]


def redirect(output: ov.Output, replacement: ov.Output) -> None:
    """Make everybody who reads `output` read `replacement`."""
    for target in list(output.get_target_inputs()):
        target.replace_source_output(replacement)


def find_input(model: ov.Model, *names: str) -> ov.Node | None:
    """The Parameter that carries one of these names, or None."""
    wanted = set(names)
    return next((p for p in model.get_parameters() if wanted & p.output(0).get_names()), None)


def copy_rt_info(source: ov.Model, target: ov.Model) -> None:
    """A new Model starts without rt_info; settings such as the KV precision live there."""
    for key, value in source.get_rt_info().items():
        target.set_rt_info(value, key)
