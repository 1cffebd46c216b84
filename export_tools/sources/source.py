"""What any source of a model comes down to."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A stateful OpenVINO model on disk and what is known beside it."""

    path: Path  # what the user named
    model: Path  # openvino_model.xml
    name: str
    tokenizer_kind: Literal["huggingface", "openvino"]
    tokenizer_files: tuple[Path, ...]
    chat_template: str
    eos_ids: tuple[int, ...]
    bos_id: int | None
    context_length: int
    digest: str  # sha256 over what the user gave us
    generation_defaults: dict[str, Any] = field(default_factory=dict[str, Any])
