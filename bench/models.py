"""Models of the shapes of Llama 3.1 and 3.2 with random weights: what a size costs, where no such model may be fetched.

    python -m bench.models 1b /tmp/models/1b

A Hugging Face folder: bfloat16 weights, one file a layer (written with memory for one tensor), a configuration with
their rope scaling, a tokenizer of bytes whose other tokens only fill up the vocabulary.
"""

import argparse
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 128_256
SPECIAL = 128_000  # the first of the special tokens
BOS, EOS, TURN = 128_000, 128_001, 128_009


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    tied: bool
    rope_factor: float
    vocabulary: int = VOCABULARY


SHAPES = {
    "1b": Shape(hidden=2048, layers=16, heads=32, kv_heads=8, inner=8192, tied=True, rope_factor=32.0),
    "3b": Shape(hidden=3072, layers=28, heads=24, kv_heads=8, inner=8192, tied=True, rope_factor=32.0),
    "8b": Shape(hidden=4096, layers=32, heads=32, kv_heads=8, inner=14336, tied=False, rope_factor=8.0),
}


def configuration(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden // shape.heads,
        "intermediate_size": shape.inner,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": shape.rope_factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "bos_token_id": BOS,
        "eos_token_id": [EOS, TURN],
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }


def layer_tensors(shape: Shape, layer: int) -> dict[str, tuple[int, ...]]:
    kv = shape.hidden // shape.heads * shape.kv_heads
    sizes = {
        "self_attn.q_proj": (shape.hidden, shape.hidden),
        "self_attn.k_proj": (kv, shape.hidden),
        "self_attn.v_proj": (kv, shape.hidden),
        "self_attn.o_proj": (shape.hidden, shape.hidden),
        "mlp.gate_proj": (shape.inner, shape.hidden),
        "mlp.up_proj": (shape.inner, shape.hidden),
        "mlp.down_proj": (shape.hidden, shape.inner),
        "input_layernorm": (shape.hidden,),
        "post_attention_layernorm": (shape.hidden,),
    }
    return {f"model.layers.{layer}.{name}.weight": size for name, size in sizes.items()}


def files(shape: Shape) -> Iterator[tuple[str, dict[str, tuple[int, ...]]]]:
    """(name, tensors and their shapes) of every file."""
    table = (shape.vocabulary, shape.hidden)
    yield "embedding", {"model.embed_tokens.weight": table, "model.norm.weight": (shape.hidden,)}
    for layer in range(shape.layers):
        yield f"layer{layer:02}", layer_tensors(shape, layer)
    if not shape.tied:
        yield "head", {"lm_head.weight": table}


def write_file(path: Path, tensors: dict[str, tuple[int, ...]], rng: np.random.Generator) -> None:
    """A safetensors file of random bfloat16: rows of matrices with a norm of about one, norms around one."""
    header: dict[str, Any] = {}
    at = 0
    for name, size in tensors.items():
        end = at + 2 * int(np.prod(size))
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for size in tensors.values():
            for part in range(0, size[0], 8192):
                rows = (min(8192, size[0] - part), *size[1:])
                values = rng.standard_normal(rows, dtype=np.float32)
                values = values * size[-1] ** -0.5 if len(size) == 2 else 1 + 0.1 * values
                out.write((values.view(np.uint32) >> 16).astype(np.uint16).data)


def tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    filling = {f"<filler {at}>": at for at in range(len(alphabet), SPECIAL)}
    made = Tokenizer(models.BPE(vocab={**{char: at for at, char in enumerate(alphabet)}, **filling}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    names = {BOS: "<|begin_of_text|>", EOS: "<|end_of_text|>", TURN: "<|eot_id|>"}
    special = [names.get(at, f"<|reserved {at}|>") for at in range(SPECIAL, VOCABULARY)]
    made.add_special_tokens([AddedToken(name, special=True) for name in special])
    return made


def write_model(shape: Shape, folder: Path) -> None:
    """Weights and configuration; the latter last: that it is there says that all is."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for file, tensors in files(shape):
        write_file(folder / f"{file}.safetensors", tensors, rng)
    weights = {tensor: f"{file}.safetensors" for file, tensors in files(shape) for tensor in tensors}
    index = {"metadata": {}, "weight_map": weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(configuration(shape), indent=2))


def make(name: str, folder: Path) -> Path:
    """The model of that name in `folder`; what is there already is left."""
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer().save(str(folder / "tokenizer.json"))
        special = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
        names = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special})
        (folder / "tokenizer_config.json").write_text(names)
        write_model(SHAPES[name], folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=tuple(SHAPES))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    print(make(options.shape, options.folder))


if __name__ == "__main__":
    main()
