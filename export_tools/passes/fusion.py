# pyright: basic
"""Did the fusion happen? The compiled runtime graph says so."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import openvino as ov

_FUSED: Final = "ScaledDotProductAttention"  # CPU: the stateful attention that keeps its cache inside
_PAGED: Final = "PagedAttentionExtension"
_PAGED_NAMES: Final = (_PAGED, "PagedAttention")


@dataclass(frozen=True, slots=True)
class Fusion:
    """How the attention of a compiled shard runs."""

    fused: int  # stateful attentions that own their cache
    paged: int
    operations: dict[str, int]  # all layer types of the runtime graph, to compare a chain with the whole

    def complete(self, layers: int) -> bool:
        """Whether every layer is fused or paged."""
        return max(self.fused, self.paged) >= layers


def read_fusion(compiled: ov.CompiledModel) -> Fusion:
    """Count the attention layers of a compiled model's runtime graph."""
    counts: Counter[str] = Counter()
    for node in compiled.get_runtime_model().get_ops():
        info = node.get_rt_info()
        if "layerType" in info:
            counts[str(info["layerType"].astype(str))] += 1
    paged = sum(counts[kind] for kind in _PAGED_NAMES)
    return Fusion(fused=counts[_FUSED], paged=paged, operations=dict(counts))
