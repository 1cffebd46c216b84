# pyright: basic
"""A GGUF file: openvino-genai turns it into a stateful IR and a tokenizer, without torch."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

from engine.contract.errors import UsageError
from export_tools.sources.gguf_header import read_header
from export_tools.sources.ir import DEFAULT_CONTEXT, digest_of, read_ir_folder
from export_tools.sources.source import Source


def read_gguf(path: Path, workspace: Path) -> Source:
    """Convert into `workspace` (an empty folder that must outlive the source) and describe. Raises UsageError."""
    header = read_header(path)
    architecture = str(header.get("general.architecture", ""))
    import openvino_genai as genai  # noqa: PLC0415  takes a second to load

    copy = workspace / path.name  # genai writes the IR beside the file it is given
    try:
        os.link(path, copy)
    except OSError:
        shutil.copyfile(path, copy)
    try:
        genai.LLMPipeline(str(copy), "CPU", enable_save_ov_model=True, ATTENTION_BACKEND="SDPA")
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise UsageError(f"openvino-genai cannot read {path} (architecture {architecture}): {reason}") from error
    source = read_ir_folder(workspace)
    return replace(
        source,
        path=path,
        name=str(header.get("general.name") or path.stem),
        context_length=int(header.get(f"{architecture}.context_length") or DEFAULT_CONTEXT),
        eos_ids=_eos(header, source.eos_ids),
        bos_id=header.get("tokenizer.ggml.bos_token_id", source.bos_id),
        chat_template=str(header.get("tokenizer.chat_template") or source.chat_template),
        digest=digest_of([path]),
    )


def _eos(header: dict[str, object], known: tuple[int, ...]) -> tuple[int, ...]:
    """End of text and end of turn: GGUF keeps them under different keys."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
    found = [int(str(header[key])) for key in keys if key in header]
    return tuple(dict.fromkeys([*found, *known]))
