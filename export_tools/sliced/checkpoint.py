"""The tensors of a Hugging Face folder by layer, read from the headers of its safetensors files."""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.contract.errors import UsageError
from export_tools.compress import WeightOptions
from export_tools.plan import Weights

_MAX_HEADER: Final = 100_000_000  # bytes, as the format allows
_BYTES: Final = {"f32": 4.0, "f16": 2.0, "int8": 1.0, "int4": 0.5}  # of a weight, its share of a scale left out
FLOATS: Final = ("F32", "F16", "BF16")


class CannotSliceError(UsageError):
    """Why a model must be exported whole."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor on disk. `layer` is None of what belongs to no layer: embedding, head, last norm."""

    name: str
    file: Path
    dtype: str  # as safetensors says it, e.g. BF16
    shape: tuple[int, ...]
    prefix: str = ""  # of the list of layers, e.g. model.layers
    layer: int | None = None
    rest: str = ""  # of the name, behind the number

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All tensors of a model with `layers` layers."""

    tensors: tuple[Tensor, ...]
    layers: int

    @property
    def sixteen_bits(self) -> bool:
        """Whether no tensor is wider than 16 bits."""
        return all(tensor.dtype in ("F16", "BF16") for tensor in self.tensors)

    def of_layer(self, layer: int) -> dict[str, Tensor]:
        """{name behind the number: tensor}."""
        return {tensor.rest: tensor for tensor in self.tensors if tensor.layer == layer}


def read_checkpoint(folder: Path, layers: int) -> Checkpoint:
    """Raises CannotSliceError when the tensors do not fall into that many layers, UsageError on a broken file."""
    found = [tensor for file in _files(folder) for tensor in _read_header(file)]
    strange = sorted({tensor.dtype for tensor in found} - set(FLOATS))
    if strange:
        raise CannotSliceError(f"its weights are {', '.join(strange)}")
    numbered: dict[str, set[int]] = {}
    for tensor in found:
        if tensor.layer is not None:
            numbered.setdefault(tensor.prefix, set()).add(tensor.layer)
    if list(numbered.values()) != [set(range(layers))]:
        names = ", ".join(sorted(numbered)) or "none"
        raise CannotSliceError(f"its tensors are not numbered by its {layers} layers alone (lists: {names})")
    return Checkpoint(tuple(found), layers)


def estimate(checkpoint: Checkpoint, weights: WeightOptions) -> Weights:
    """Bytes per part once they are compressed, for an even plan: the largest tensors of no layer are the tables."""
    wide = _BYTES["int8" if weights.kind == "int4" else weights.kind]
    sizes = [0.0] * checkpoint.layers
    for tensor in checkpoint.tensors:
        if tensor.layer is not None:
            sizes[tensor.layer] += tensor.elements * _BYTES[weights.kind]
    tables = sorted((t.elements for t in checkpoint.tensors if t.layer is None and len(t.shape) == 2), reverse=True)
    table = int(tables[0] * wide) if tables else 0  # a tied head is the same one again
    return Weights(tuple(map(int, sizes)), table, table)


def _files(folder: Path) -> list[Path]:
    """Those of the index, if there is one: folders also hold the same weights under other names."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    names: set[str] = set(json.loads(index.read_bytes())["weight_map"].values())
    if missing := sorted(name for name in names if not (folder / name).is_file()):
        raise UsageError(f"{folder} has no {missing[0]}, which {index.name} names: fetch the whole model")
    return [folder / name for name in sorted(names)]


def _read_header(file: Path) -> list[Tensor]:
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > _MAX_HEADER:
                raise ValueError(f"a header of {length} bytes")
            header: dict[str, Any] = json.loads(opened.read(length))
    except (ValueError, struct.error) as error:
        raise UsageError(f"{file} cannot be read as safetensors: {error}") from error
    header.pop("__metadata__", None)
    return [_tensor(file, name, entry) for name, entry in header.items()]


def _tensor(file: Path, name: str, entry: dict[str, Any]) -> Tensor:
    plain = Tensor(name, file, entry["dtype"], tuple(entry["shape"]))
    parts = name.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    if at is None:
        return plain
    place = ".".join(parts[:at]), int(parts[at]), ".".join(parts[at + 1 :])
    return Tensor(plain.name, plain.file, plain.dtype, plain.shape, *place)
