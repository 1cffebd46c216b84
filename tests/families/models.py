# pyright: reportMissingImports=false
"""Small random models of every family that is promised, and how they become OpenVINO models.

Norms, biases and scales are random too: what is 1 or 0 in a fresh model hides what a cut drops.
Needs torch, transformers and optimum-intel; import it inside of tests only. As a program it exports one family under
the transformers of its own PYTHONPATH: optimum-intel takes some families only from an older one.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as tr

from tests.families.parity import CONTEXT

VOCABULARY = 320
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def sizes(layers: int, **changes: Any) -> dict[str, Any]:
    return {**_SIZES, "num_hidden_layers": layers, **changes}


def _gemma(layers: int) -> dict[str, Any]:
    return sizes(layers, head_dim=16, sliding_window=8, query_pre_attn_scalar=16)


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: tr.LlamaConfig(**sizes(4), tie_word_embeddings=True),
    "llama-untied": lambda: tr.LlamaConfig(**sizes(7), tie_word_embeddings=False),
    "llama3-rope": lambda: tr.LlamaConfig(**sizes(3), rope_parameters=LLAMA3_ROPE),
    "mistral": lambda: tr.MistralConfig(**sizes(4, sliding_window=8)),
    "qwen2": lambda: tr.Qwen2Config(**sizes(5)),
    "qwen2-biases": lambda: tr.Qwen2Config(**sizes(3, hidden_size=256, num_attention_heads=2, num_key_value_heads=1)),
    "qwen3": lambda: tr.Qwen3Config(**sizes(4, head_dim=16)),
    "qwen3-yarn": lambda: tr.Qwen3Config(
        **sizes(3, head_dim=16),
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ),
    "phi3": lambda: tr.Phi3Config(**sizes(4)),
    "phi3-longrope": lambda: tr.Phi3Config(
        **sizes(3),
        original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + 0.1 * i for i in range(8)],
            "long_factor": [2.0 + 0.5 * i for i in range(8)],
            "original_max_position_embeddings": 64,
        },
    ),
    "gpt2": lambda: tr.GPT2Config(
        vocab_size=VOCABULARY, n_embd=64, n_layer=4, n_head=4, n_positions=CONTEXT, bos_token_id=1, eos_token_id=2
    ),
    "olmo2": lambda: tr.Olmo2Config(**sizes(4)),
    "granite": lambda: tr.GraniteConfig(
        **sizes(4), embedding_multiplier=2.0, residual_multiplier=0.5, logits_scaling=2.0, attention_multiplier=0.1
    ),
    "mixtral": lambda: tr.MixtralConfig(**sizes(2), num_local_experts=4, num_experts_per_tok=2),
    "qwen3-moe": lambda: tr.Qwen3MoeConfig(
        **sizes(3, head_dim=16), num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64
    ),
    "gpt-neox": lambda: tr.GPTNeoXConfig(
        **{key: value for key, value in sizes(4).items() if key != "num_key_value_heads"}
    ),
    "falcon": lambda: tr.FalconConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        new_decoder_architecture=True,
        num_kv_heads=2,
    ),
    "bloom": lambda: tr.BloomConfig(vocab_size=VOCABULARY, hidden_size=64, n_layer=4, n_head=4),
    "stablelm": lambda: tr.StableLmConfig(**sizes(4)),
    "gemma2": lambda: tr.Gemma2Config(**_gemma(4)),
    "gemma3": lambda: tr.Gemma3TextConfig(**_gemma(7)),
}
REFUSED: dict[str, Callable[[], Any]] = {  # layers that keep no KV cache
    "lfm2": lambda: tr.Lfm2Config(**sizes(4), layer_types=["conv", "full_attention"] * 2),
    "mamba": lambda: tr.MambaConfig(vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=3, state_size=8),
}
OLDER = ("gemma2", "gemma3", "lfm2", "mamba")  # exported under transformers 5.0
OLDER_TRANSFORMERS = os.environ.get("SHARDLINE_OLDER_TRANSFORMERS", "")  # a folder for PYTHONPATH


def random_model(family: str) -> Any:
    """A model of a family in evaluation mode."""
    return build({**FAMILIES, **REFUSED}[family](), scale=3.0 if family == "qwen2-biases" else 0.1)


def build(config: Any, *, scale: float = 0.1) -> Any:
    """A model with all its weights drawn from one seed; `scale`: of what is added to norms and biases."""
    torch.manual_seed(0)
    model = tr.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * scale)
            else:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    return model


def export(family: str, folder: Path) -> Any:
    """Write the family's model to `folder` as optimum-intel does; the model itself comes back, unless it is refused."""
    if family in OLDER:
        subprocess.run(
            [sys.executable, "-m", __name__, family, str(folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([OLDER_TRANSFORMERS, *sys.path])},
            check=True,
            capture_output=True,
            timeout=120,
        )
        if family in REFUSED:
            return None
        return tr.AutoModelForCausalLM.from_pretrained(folder / "huggingface").eval()
    model = random_model(family)
    convert(model, folder)
    return model


def convert(model: Any, folder: Path) -> None:
    """optimum-intel's part."""
    from optimum.exporters.openvino import export_from_model  # noqa: PLC0415

    export_from_model(model, output=folder, task="text-generation-with-past", stateful=True)


if __name__ == "__main__":
    made = random_model(sys.argv[1])
    convert(made, Path(sys.argv[2]))
    if sys.argv[1] in FAMILIES:
        made.save_pretrained(Path(sys.argv[2]) / "huggingface")
