"""Which kind of source a path is."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from engine.contract.errors import UsageError
from export_tools.sources.gguf import read_gguf
from export_tools.sources.ir import read_ir_folder
from export_tools.sources.source import Source


@contextmanager
def open_source(path: Path) -> Generator[Source]:
    """A folder with an OpenVINO model, or a .gguf file; what had to be converted is removed at the end."""
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if path.is_dir():
        yield read_ir_folder(path)
    elif path.suffix == ".gguf":
        with tempfile.TemporaryDirectory(prefix="shardline-gguf-", ignore_cleanup_errors=True) as workspace:
            yield read_gguf(path, Path(workspace))
    else:
        raise UsageError(f"{path} is neither a folder with an OpenVINO model nor a .gguf file")
