# pyright: basic
"""A transformers model of a range of layers, with only their weights in memory."""

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
    part = slice_config(config, begin, end, vocabulary=None if any(ends) else SMALL, tied=None if all(ends) else True)
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
    embedding = f"{_name_of(bones, bones.get_input_embeddings())}.weight"
    head = f"{_name_of(bones, bones.get_output_embeddings())}.weight"
    bias = f"{head.removesuffix('.weight')}.bias"
    mine = {tensor.name: tensor for tensor in checkpoint.tensors if tensor.layer is None}
    table, top = (next((mine.pop(name) for name in list(mine) if _is(name, full)), None) for full in (embedding, head))
    if table is None:
        raise CannotSliceError(f"none of its tensors is {embedding}")
    state = {}
    if ends[0]:
        state[embedding] = _load(table, dtype, {})
    if ends[1] and (top or not ends[0]):
        state[head] = _load(top or table, dtype, {})
        state.setdefault(embedding, state[head])
    state.setdefault(embedding, torch.zeros(SMALL, table.shape[-1], dtype=dtype))
    if not ends[1] and any(name == bias for name, _ in bones.named_parameters()):
        state[bias] = torch.zeros(len(state[embedding]), dtype=dtype)
    wanted = [name for name in mine if ends[1] or not _is(name, bias)]
    return {**state, **{name: _load(mine[name], dtype, {}) for name in wanted}}


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
