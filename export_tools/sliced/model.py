# pyright: basic
"""A transformers model of a range of layers, with only their weights in memory."""

from contextlib import suppress
from typing import Any

import torch  # type: ignore
from safetensors import safe_open  # type: ignore

from export_tools.sliced.checkpoint import CannotSliceError, Checkpoint, Tensor
from export_tools.sliced.structure import SMALL, skeleton, slice_config


def neighbours(first: int, last: int, layers: int) -> tuple[int, int]:
    """The range with a layer more on either side: a cut is found between two layers."""
    return max(first - 1, 0), min(last + 1, layers)


def load_range(checkpoint: Checkpoint, config: Any, first: int, last: int, *, half: bool) -> Any:
    """The layers [first, last) and their neighbours, ready for conversion; weights in f16 (`half`) or f32.

    The neighbours only show where to cut: where they are of one shape with the layer beside them they borrow its
    weights. Embedding and head are real on the stages that need them and tiny on the others.
    Raises CannotSliceError when a weight finds no place, OverflowError when one does not fit into f16.
    """
    dtype = torch.float16 if half else torch.float32
    begin, end = neighbours(first, last, checkpoint.layers)
    ends = first == 0, last == checkpoint.layers
    part = slice_config(
        config, begin, end, vocabulary=None if any(ends) else SMALL, tied=None if all(ends) else True
    )
    bones = skeleton(part)
    loaded: dict[str, Any] = {}
    state = {}
    for layer in range(begin, end):
        for tensor in _weights_of(checkpoint, layer, min(max(layer, first), last - 1)):
            state[f"{tensor.prefix}.{layer - begin}.{tensor.rest}"] = _load(tensor, dtype, loaded)
    state.update(_tables(checkpoint, bones, dtype, ends))
    model, info = type(bones).from_pretrained(
        None, config=part, state_dict=state, dtype=dtype, output_loading_info=True
    )
    wrong = {key: sorted(value) for key, value in info.items() if value and key != "error_msgs"}
    if wrong:
        raise CannotSliceError(f"transformers finds no place for its tensors, or no tensor for a place: {wrong}")
    return model.eval()


def _weights_of(checkpoint: Checkpoint, layer: int, like: int) -> list[Tensor]:
    """The tensors of a layer, or those of the layer `like` where they are of the same shapes."""
    own, others = checkpoint.of_layer(layer), checkpoint.of_layer(like)
    same = own.keys() == others.keys() and all(own[key].shape == others[key].shape for key in own)
    return list((others if same else own).values())


def _tables(checkpoint: Checkpoint, bones: Any, dtype: Any, ends: tuple[bool, bool]) -> dict[str, Any]:
    """What belongs to no layer. `ends`: whether the embedding is needed, and whether the head is."""
    embedding = _name_of(bones, bones.get_input_embeddings())
    head = _name_of(bones, bones.get_output_embeddings())
    found: dict[str, Any] = {}
    for tensor in (tensor for tensor in checkpoint.tensors if tensor.layer is None):
        if _is(tensor.name, f"{embedding}.weight"):
            role = "embedding"
        elif _is(tensor.name, f"{head}.weight"):
            role = "head"
        else:
            role = tensor.name
        found[role] = tensor
    tied = "head" not in found
    state = {}
    if ends[0]:
        state[f"{embedding}.weight"] = _load(found["embedding"], dtype, {})
    if ends[1] and not (ends[0] and tied):
        state[f"{head}.weight"] = _load(found["embedding" if tied else "head"], dtype, {})
        state.setdefault(f"{embedding}.weight", state[f"{head}.weight"])
    if not any(ends):
        width = found["embedding"].shape[1]
        state[f"{embedding}.weight"] = torch.zeros(SMALL, width, dtype=dtype)
    for name, tensor in found.items():
        if name not in ("embedding", "head") and not (_is(name, f"{head}.bias") and not ends[1]):
            state[name] = _load(tensor, dtype, {})
    if ends[0] and not ends[1]:
        _without_bias(bones, state, head, dtype)
    return state


def _without_bias(bones: Any, state: dict[str, Any], head: str, dtype: Any) -> None:
    """A head that will be cut away still needs its bias to load."""
    with suppress(AttributeError):
        if (bias := bones.get_output_embeddings().bias) is not None:
            state[f"{head}.bias"] = torch.zeros(bias.shape, dtype=dtype)


def _name_of(model: Any, wanted: Any) -> str:
    return next((name for name, module in model.named_modules() if module is wanted), "")


def _is(name: str, full: str) -> bool:
    """Whether a tensor of a file is that parameter: files may leave out the name of the base model."""
    return name == full or full.endswith(f".{name}")


def _load(tensor: Tensor, dtype: Any, loaded: dict[str, Any]) -> Any:
    if tensor.name not in loaded:
        with safe_open(tensor.file, framework="pt") as opened:  # closed again: its pages count as ours while it is open
            value = opened.get_tensor(tensor.name)
            loaded[tensor.name] = value.to(dtype) if value.dtype != dtype else value.clone()
        if dtype == torch.float16 and tensor.dtype != "F16" and not bool(loaded[tensor.name].isfinite().all()):
            raise OverflowError(tensor.name)
    return loaded[tensor.name]
