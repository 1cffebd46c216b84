# pyright: basic
"""A Hugging Face folder with safetensors: optimum-intel turns it into a stateful IR, with torch."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from engine.contract.errors import UsageError
from export_tools.sources.ir import MODEL, digest_of, read_ir_folder
from export_tools.sources.source import Source

TASK: Final = "text-generation-with-past"


def is_huggingface(folder: Path) -> bool:
    """Whether a folder holds a model for transformers, and none for OpenVINO."""
    has_weights = any(folder.glob("*.safetensors"))
    return has_weights and (folder / "config.json").is_file() and not (folder / MODEL).exists()


def check_exporter(folder: Path) -> None:
    """Raise UsageError when what converts a Hugging Face folder is not installed."""
    for package in ("torch", "optimum", "nncf"):
        if find_spec(package) is None:
            raise UsageError(
                f"{folder} is a Hugging Face model, which optimum-intel must convert, and {package} is missing: "
                "pip install 'shardline[export]', or name a folder with openvino_model.xml"
            )


def read_huggingface(folder: Path, workspace: Path) -> Source:
    """Convert into `workspace` (an empty folder that must outlive the source) and describe. Raises UsageError."""
    check_exporter(folder)
    from optimum.exporters.openvino import main_export  # type: ignore # noqa: PLC0415  torch, and not always there
    from optimum.intel import OVConfig  # type: ignore # noqa: PLC0415

    try:
        main_export(
            str(folder),
            workspace,
            task=TASK,
            library_name="transformers",
            stateful=True,
            local_files_only=True,
            ov_config=OVConfig(dtype="fp32"),  # else models above a billion parameters come out in 8 bits, unasked
        )
    except (ValueError, KeyError, RuntimeError, OSError) as error:  # an architecture it does not know, files amiss
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise UsageError(f"optimum-intel cannot convert {folder}: {reason}") from error
    source = read_ir_folder(workspace)
    return replace(source, path=folder, name=folder.resolve().name, digest=digest_of_huggingface(folder))


def digest_of_huggingface(folder: Path) -> str:
    """sha256 over the configuration and all weights."""
    return digest_of([folder / "config.json", *sorted(folder.glob("*.safetensors"))])
