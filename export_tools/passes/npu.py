# pyright: basic
"""Could a graph run on an NPU? What can be said without one: fixed shapes, no state, operations its compiler knows.

The list is what decoders use of the operations that Intel's NPU compiler imports, and those that OpenVINO takes apart
before (attention, slices, splits). Which of them run well, only a device can say.
"""

from typing import Final

import openvino as ov

from engine.contract.errors import CutError
from export_tools.passes.graph import kind

_OPERATIONS: Final = """
Parameter Result Constant Convert ConvertLike
Add Subtract Multiply Divide Power Sqrt Negative Abs Maximum Minimum Clamp Floor Exp Log
MatMul Softmax ScaledDotProductAttention
ReduceMean ReduceSum ReduceMax ReduceMin MVN NormalizeL2
Sigmoid Swish Gelu Relu Tanh Erf SoftPlus HSwish Elu
Sin Cos Gather GatherElements Concat Split VariadicSplit Slice StridedSlice
Reshape Squeeze Unsqueeze Transpose Broadcast Tile Pad
Select Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalNot
"""
OPERATIONS: Final = frozenset(_OPERATIONS.split())
MOST_AXES: Final = 5


def check_npu(model: ov.Model) -> None:
    """Raises CutError naming the first operation that an NPU would not take."""
    for node in model.get_ordered_ops():
        where = f"{node.get_friendly_name()} ({kind(node)})"
        if kind(node) in ("ReadValue", "Assign"):
            raise CutError(f"{where} keeps a state: a static shard has none")
        if kind(node) not in OPERATIONS:
            raise CutError(f"{where} is not an operation that an NPU runs: use --runner paged or stateful")
        for output in node.outputs():
            shape = output.get_partial_shape()
            if shape.is_dynamic:
                raise CutError(f"{where} keeps the shape {shape}: an NPU wants all of them fixed")
            if len(shape) > MOST_AXES:
                raise CutError(f"{where} has {len(shape)} axes: an NPU takes {MOST_AXES} at most")
