# pyright: basic
"""A folder as optimum-intel (or anyone) writes it: openvino_model.xml, tokenizer, config.json."""

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import openvino as ov

from engine.contract.errors import UsageError
from export_tools.sources.source import Source

MODEL: Final = "openvino_model.xml"
HF_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
OV_FILES: Final = tuple(f"openvino_{which}.{end}" for which in ("tokenizer", "detokenizer") for end in ("xml", "bin"))
DEFAULT_CONTEXT: Final = 2048  # tokens, when nothing in the folder says it
_DEFAULTS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def read_ir_folder(folder: Path) -> Source:
    """Describe a folder with a stateful IR. Raises UsageError naming what is missing."""
    model = folder / MODEL
    if not model.is_file() or not model.with_suffix(".bin").is_file():
        raise UsageError(f"{folder} has no {MODEL} with its .bin: it is not an OpenVINO model folder")
    return describe(folder, model, digest_of([model, model.with_suffix(".bin")]))


def describe(folder: Path, model: Path, digest: str) -> Source:
    """A folder's tokenizer and what its configuration says, with `model` as what was made of it. Raises UsageError."""
    config, generation = _json(folder / "config.json"), _json(folder / "generation_config.json")
    if (folder / "tokenizer.json").is_file():
        kind, names = "huggingface", HF_FILES
    elif (folder / OV_FILES[0]).is_file():
        kind, names = "openvino", OV_FILES
    else:
        raise UsageError(f"{folder} has neither tokenizer.json nor {OV_FILES[0]}: a model needs its tokenizer")
    hints = tokenizer_hints(folder)
    return Source(
        path=folder,
        model=model,
        name=config.get("_name_or_path") or folder.resolve().name,
        tokenizer_kind=kind,
        tokenizer_files=tuple(folder / name for name in names if (folder / name).is_file()),
        chat_template=_chat_template(folder) or hints.get("chat_template", ""),
        eos_ids=_eos(config, generation, hints),
        bos_id=_first(config.get("bos_token_id"), hints.get("bos_token_id")),
        context_length=int(_text_config(config).get("max_position_embeddings") or DEFAULT_CONTEXT),
        digest=digest,
        generation_defaults={key: generation[key] for key in _DEFAULTS if generation.get(key) is not None},
    )


def tokenizer_hints(folder: Path) -> dict[str, Any]:
    """chat_template, eos_token_id, bos_token_id from a tokenizer IR's rt_info, as far as it has them."""
    path = folder / OV_FILES[0]
    if not path.is_file():
        return {}
    import openvino_tokenizers  # noqa: F401, PLC0415  registers its operations

    info = ov.Core()
    info.add_extension(str(_extension()))
    model = info.read_model(path)
    hints: dict[str, Any] = {}
    for key in ("chat_template", "eos_token_id", "bos_token_id"):
        if model.has_rt_info(key):
            value = model.get_rt_info(key).astype(str)
            hints[key] = value if key == "chat_template" else int(value)
    return hints


def _extension() -> Path:
    import openvino_tokenizers  # noqa: PLC0415

    return Path(openvino_tokenizers._ext_path)


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("text_config") or config


def _chat_template(folder: Path) -> str:
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = _json(folder / "tokenizer_config.json").get("chat_template") or ""
    if isinstance(template, list):  # several named ones
        return next((entry["template"] for entry in template if entry["name"] == "default"), "")
    return template


def _eos(config: dict[str, Any], generation: dict[str, Any], hints: dict[str, Any]) -> tuple[int, ...]:
    found: list[int] = []
    for value in (generation.get("eos_token_id"), _text_config(config).get("eos_token_id"), hints.get("eos_token_id")):
        found += value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(int(token) for token in found))


def _first(*values: int | None) -> int | None:
    return next((int(value) for value in values if value is not None), None)


def digest_of(paths: list[Path]) -> str:
    """sha256 over the contents of files, in order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
