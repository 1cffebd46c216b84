"""The manifest of a split that is in no file: of a model whose tokens are bytes."""

from dataclasses import replace
from typing import Any

from engine.contract.manifest import SCHEMA, Manifest, StageManifest

VOCABULARY = 256
HIDDEN = 2
EOS = 255


def manifest(stages: int = 2, **changes: Any) -> Manifest:
    whole = Manifest(
        schema=SCHEMA,
        name="model",
        slug="model",
        source="",
        source_digest="",
        split="split",
        layers=stages,
        hidden_size=HIDDEN,
        vocabulary=VOCABULARY,
        context_length=200,
        kv_bytes_per_token=8,
        beam_gather=True,
        stages=tuple(
            StageManifest(index=i, first_layer=i, last_layer=i + 1, model="", files=(), weight_bytes=0)
            for i in range(stages)
        ),
        tokenizer_kind="huggingface",
        tokenizer_files=(),
        chat_template="yes",
        eos_ids=(EOS,),
    )
    return replace(whole, **changes)
