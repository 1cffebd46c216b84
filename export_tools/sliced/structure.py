# pyright: basic
"""Configurations of a range of layers, and the proof that these layers are built like those of the whole model."""

from collections.abc import Mapping
from typing import Any, Final

import torch  # type: ignore
from transformers import AutoModelForCausalLM, PretrainedConfig

from export_tools.sliced.checkpoint import CannotSliceError

SMALL: Final = 64  # rows of an embedding that nobody needs
_NOT_BY_LAYER: Final = ("architectures", "eos_token_id")  # lists that may be as long as there are layers
_NUMBERS: Final = ("mlp_only_layers", "attn_layer_indices")  # lists of layers' numbers
_MAY_DIFFER: Final = {"layer_idx", "layer_id", "layer_number", "num_hidden_layers", "n_layer", "num_layers", "training"}


def slice_config(config: Any, first: int, last: int, *, vocabulary: int | None = None, tied: bool | None = None) -> Any:
    """The configuration of the layers [first, last) alone: what it says by layer is cut with them."""
    layers = config.num_hidden_layers
    fields = config.to_dict()
    for key, value in fields.items():
        if key in _NUMBERS and value:
            fields[key] = [layer - first for layer in value if first <= layer < last]
        elif isinstance(value, list) and len(value) == layers and key not in _NOT_BY_LAYER:
            fields[key] = value[first:last]
    if fields.get("first_k_dense_replace"):
        fields["first_k_dense_replace"] = max(0, fields["first_k_dense_replace"] - first)
    fields[_own_name(config, "num_hidden_layers")] = last - first
    if vocabulary is not None:
        fields[_own_name(config, "vocab_size")] = vocabulary
        fields.update(dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")))
    if tied is not None:
        fields["tie_word_embeddings"] = tied
    return type(config).from_dict(fields)


def skeleton(config: PretrainedConfig) -> Any:
    """A model without memory for its weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def check_structure(config: Any, ranges: list[tuple[int, int]], prefix: str) -> None:
    """Raise CannotSliceError unless every range of layers alone is built like the same layers of the whole model.

    Compared are the modules: their kinds, numbers, names and flags, and the shapes of their weights. What a layer
    makes of its place in the model (windows, experts, rotary factors, caches of others) shows in one of these.
    """
    if getattr(config, "text_config", None) is not None:
        raise CannotSliceError("it is made of several models (text_config)")
    if getattr(config, "quantization_config", None):
        raise CannotSliceError("its weights are quantised already")
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):
        raise CannotSliceError("its layers compute with their own number (scale_attn_by_inverse_layer_idx)")
    whole = _described(skeleton(config), prefix)
    for first, last in ranges:
        try:
            part = _described(skeleton(slice_config(config, first, last)), prefix, first)
        except (ValueError, TypeError, IndexError, KeyError) as error:
            raise CannotSliceError(f"layers [{first}, {last}) alone are no model to transformers: {error}") from error
        _compare(whole, part, f"[{first}, {last})")


def _compare(whole: Mapping[str, dict[str, Any]], part: Mapping[str, dict[str, Any]], layers: str) -> None:
    for name, mine in part.items():
        theirs = whole.get(name, {})
        for key in mine.keys() | theirs.keys():
            if mine.get(key) != theirs.get(key):
                raise CannotSliceError(
                    f"{name} is another one in layers {layers} alone: {key} is {mine.get(key)}, not {theirs.get(key)}"
                )


def _described(model: Any, prefix: str, shift: int = 0) -> dict[str, dict[str, Any]]:
    """What can be said of every module, by the name it has in the whole model."""
    return {_moved(name, prefix, shift): _describe(module) for name, module in model.named_modules()}


def _describe(module: Any) -> dict[str, Any]:
    plain = {key: value for key, value in vars(module).items() if not key.startswith("_") and key not in _MAY_DIFFER}
    facts = {key: value for key, value in plain.items() if isinstance(value, int | float | str | tuple | None)}
    shapes = {f"shape of {name}": tuple(value.shape) for name, value in module.named_parameters(recurse=False)}
    return {"kind": type(module).__name__, **facts, **shapes}


def _moved(name: str, prefix: str, shift: int) -> str:
    """A module's name with the number of its layer raised; `prefix` may lack the name of the base model."""
    parts = name.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    if at is None or parts[at - 1] != prefix.rsplit(".", maxsplit=1)[-1]:
        return name
    return ".".join([*parts[:at], str(int(parts[at]) + shift), *parts[at + 1 :]])


def _own_name(config: Any, name: str) -> str:
    return config.attribute_map.get(name, name)
