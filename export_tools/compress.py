# pyright: basic
"""Weights in fewer bits, through NNCF. Always of the whole model: a layer is the same whatever the split (D1)."""

import math
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import openvino as ov

from engine.contract.errors import UsageError
from export_tools.passes.graph import find_input, kind
from export_tools.sources.source import Source
from export_tools.texts import CALIBRATION, tokenize

WeightKind = Literal["f32", "f16", "int8", "int4"]
_COMPRESSED: Final = ("u8", "i8", "u4", "i4", "nf4")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOptions:
    """What weights are kept in. Only int4 looks at what follows; embedding and head stay at 8 bits there."""

    kind: WeightKind = "f32"
    group_size: int = 128  # weights that share a scale; -1: all of a row
    ratio: float = 1.0  # of the layers' weights in 4 bits, the others in 8
    asymmetric: bool = False  # with a zero point: closer, a little slower
    awq: bool = False  # scales between layers that spare the weights which matter to bundled texts

    def __post_init__(self) -> None:
        if not (self.group_size == -1 or self.group_size > 0):
            raise UsageError(f"--group-size {self.group_size}: a number of weights, or -1 for whole rows")
        if not 0 <= self.ratio <= 1:
            raise UsageError(f"--ratio {self.ratio}: from 0 to 1")

    @property
    def looks_at_data(self) -> bool:
        """Whether texts must pass through the model to choose its scales."""
        return self.kind == "int4" and self.awq

    def as_dict(self) -> dict[str, Any]:
        """For the manifest; what does not count is left out."""
        return asdict(self) if self.kind == "int4" else {"kind": self.kind}


AS_THEY_ARE: Final = WeightOptions()


def compress_source(source: Source, options: WeightOptions, folder: Path, leave: Sequence[str] = ()) -> Source:
    """The source with its weights as wanted, in `folder`, which must outlive it. Raises UsageError.

    Operations whose names match a pattern of `leave` keep theirs.
    """
    if options.kind == "f32":
        return source
    model = ov.Core().read_model(source.model)
    already = sorted({_type(node) for node in model.get_ops() if kind(node) == "Constant"} & set(_COMPRESSED))
    if already:
        raise UsageError(f"the weights of {source.path} are {', '.join(already)} already: split it as it is")
    if options.kind != "f16":
        with redirect_stdout(sys.stderr):  # NNCF shows its progress where we print results
            data = _inputs(source, model) if options.looks_at_data else []
            model = _compress(model, options, leave, data)
    folder.mkdir(exist_ok=True)
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=options.kind == "f16")
    return replace(source, model=folder / "openvino_model.xml")


def _compress(model: ov.Model, options: WeightOptions, leave: Sequence[str], data: list[Any]) -> ov.Model:
    try:
        import nncf  # type: ignore # noqa: PLC0415  not always there, and slow to load
    except ImportError as error:
        raise UsageError(f"--weights {options.kind} needs NNCF ({error}): pip install 'shardline[export]'") from error
    scope = nncf.IgnoredScope(patterns=list(leave), validate=False) if leave else None
    if options.kind == "int8":
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM, ignored_scope=scope)
    mode = nncf.CompressWeightsMode.INT4_ASYM if options.asymmetric else nncf.CompressWeightsMode.INT4_SYM
    strict = nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode.ERROR)
    fits = _usable_group_size(model)
    try:
        return nncf.compress_weights(
            model,
            mode=mode,
            ratio=options.ratio,
            group_size=options.group_size,
            ignored_scope=scope,
            dataset=nncf.Dataset(data) if data else None,
            awq=options.awq or None,
            advanced_parameters=strict,
        )
    except nncf.InvalidGroupSizeError as error:
        first = next((line.strip() for line in str(error).splitlines() if "channel size" in line.lower()), "")
        name = first or str(error).splitlines()[-1].strip()
        raise UsageError(
            f"--group-size {options.group_size} does not divide the rows of some weights ({name}): "
            f"{fits} does, or -1 for whole rows"
        ) from error


def _inputs(source: Source, model: ov.Model) -> list[dict[str, Any]]:
    """The calibration texts as inputs of a stateful model."""
    folder = source.tokenizer_files[0].parent
    found = []
    for text in CALIBRATION:
        ids = np.array([tokenize(folder, source.tokenizer_kind, text)], np.int64)
        given = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "position_ids": np.arange(ids.shape[1])[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        found.append({name: value for name, value in given.items() if find_input(model, name) is not None})
    return found


def _usable_group_size(model: ov.Model) -> int:
    """The largest power of two that divides the rows of every matrix."""
    rows = [
        list(node.get_output_shape(0))[-1]
        for node in model.get_ops()
        if kind(node) == "Constant" and len(node.get_output_shape(0)) >= 2 and min(node.get_output_shape(0)[-2:]) > 1
    ]
    common = math.gcd(*rows)
    return common & -common


def _type(node: ov.Node) -> str:
    return node.get_element_type().get_type_name()
