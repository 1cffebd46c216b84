"""The demo model as one OpenVINO folder, the way openvino-genai reads it from GGUF."""

import asyncio
import shutil
from pathlib import Path

from engine.local.model import cache_folder, demo_gguf
from export_tools.sources.open import open_source


def ir_folder() -> Path:
    """Model and tokenizer IRs, made once and cached."""
    target = cache_folder() / "ir"
    if not (target / "openvino_model.xml").is_file():
        with open_source(asyncio.run(demo_gguf(print))) as source:
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source.model.parent, target, ignore=shutil.ignore_patterns("*.gguf"))
    return target
