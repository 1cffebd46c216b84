"""Which kind of source a path is."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from engine.contract.errors import UsageError
from export_tools.sources.gguf import read_gguf
from export_tools.sources.huggingface import is_huggingface, read_huggingface
from export_tools.sources.ir import read_ir_folder
from export_tools.sources.source import Source


@contextmanager
def open_source(path: Path) -> Generator[Source]:
    """An OpenVINO or Hugging Face folder, or a .gguf file; what had to be converted is removed at the end."""
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if path.is_dir() and is_huggingface(path):
        with tempfile.TemporaryDirectory(prefix="shardline-hf-", ignore_cleanup_errors=True) as workspace:
            yield read_huggingface(path, Path(workspace))
    elif path.is_dir():
        yield read_ir_folder(path)
    elif path.suffix == ".gguf":
        with tempfile.TemporaryDirectory(prefix="shardline-gguf-", ignore_cleanup_errors=True) as workspace:
            yield read_gguf(path, Path(workspace))
    else:
        raise UsageError(f"{path} is neither a folder with a model nor a .gguf file")
