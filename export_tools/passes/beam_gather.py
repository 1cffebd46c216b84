# pyright: basic
"""The beam_idx Gather between a cache and its Concat (D2; paper, technique 2).

`ReadValue > Gather(beam_idx) > Concat > attention` is what the plugins' fused stateful attention looks for. Without it
they copy the whole cache at every step.
"""

import openvino as ov
from openvino import opset13 as op

from export_tools.passes.graph import children, find_input, kind, parents, redirect
from export_tools.passes.shapes import mend_broadcasts

BEAM_INPUT = "beam_idx"


def inject_beam_gather(model: ov.Model) -> int:
    """Put the Gather behind every cache that lacks it, adding the input where there is none; how many were added.

    Must run after the model is stateful. Changes `model`.
    """
    bare = [node for node in _caches(model) if not _gathers(node)]
    if not bare:
        return 0
    beam = find_input(model, BEAM_INPUT)
    if beam is None:
        beam = op.parameter([-1], ov.Type.i32, name=BEAM_INPUT)
        beam.output(0).set_names({BEAM_INPUT})
        model.add_parameters([beam])
    for read in bare:
        targets = [t for t in read.output(0).get_target_inputs() if kind(t.get_node()) not in ("ShapeOf", "Assign")]
        gather = op.gather(read.output(0), beam.output(0), op.constant(0, ov.Type.i64))
        for target in targets:
            target.replace_source_output(gather.output(0))
    model.validate_nodes_and_infer_types()
    return len(bare)


def remove_beam_gather(model: ov.Model) -> int:
    """Take the Gathers out again, to measure without them; how many were removed. Changes `model`.

    Attention then runs unfused, which needs broadcasts that mean what they do.
    """
    removed = 0
    for read in _caches(model):
        for gather in _gathers(read):
            redirect(gather.output(0), read.output(0))
            removed += 1
    mend_broadcasts(model)
    beam = find_input(model, BEAM_INPUT)
    if beam is not None and not children(beam):
        model.remove_parameter(beam)
    model.validate_nodes_and_infer_types()
    return removed


def _caches(model: ov.Model) -> list[ov.Node]:
    return [node for node in model.get_ordered_ops() if kind(node) == "ReadValue"]


def _gathers(read: ov.Node) -> list[ov.Node]:
    return [
        child
        for child in children(read)
        if kind(child) == "Gather" and any(_is_beam(parent) for parent in parents(child)[1:2])
    ]


def _is_beam(node: ov.Node) -> bool:
    return kind(node) == "Parameter" and BEAM_INPUT in node.output(0).get_names()
