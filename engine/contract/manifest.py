"""What a split is made of: the manifest beside the shards, and how it is read and checked."""

import hashlib
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from engine.contract.errors import ManifestError
from engine.contract.reading import read
from engine.contract.static import StaticLimits

SCHEMA: Final = 1
MANIFEST_NAME: Final = "manifest.json"
HEAD_TOKENS: Final = "head_tokens.npy"  # int32 ids: beside a draft's shard, the token of each row of its head
_PART: Final = re.compile(r"[^/\\:\0]+")  # of a path
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """One file of a split."""

    path: str  # relative to the split's folder, with forward slashes
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageManifest:
    """One stage: layers [first_layer, last_layer) and the files of its shard."""

    index: int
    first_layer: int
    last_layer: int
    model: str  # path of the shard's .xml, relative
    files: tuple[FileDigest, ...]
    weight_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything a worker, a decoder and a client need to know of a split."""

    schema: int
    name: str  # for people
    slug: str  # in subjects: [A-Za-z0-9_-]
    source: str  # where it was when it was split
    source_digest: str  # sha256 over the source's files
    split: str  # digest over the shards: equal only for workers of one split
    layers: int
    hidden_size: int
    vocabulary: int
    context_length: int
    kv_bytes_per_token: int  # f32, of all layers together
    beam_gather: bool
    stages: tuple[StageManifest, ...]
    tokenizer_kind: Literal["huggingface", "openvino"]
    tokenizer_files: tuple[FileDigest, ...]  # under tokenizer/
    chat_template: str  # "" when the model has none
    eos_ids: tuple[int, ...]
    bos_id: int | None = None
    generation_defaults: dict[str, Any] = field(default_factory=dict[str, Any])
    hidden_dtype: Literal["f32"] = "f32"
    versions: dict[str, str] = field(default_factory=dict[str, str])  # openvino, shardline
    weights: dict[str, Any] = field(default_factory=dict[str, Any])  # how build compressed the source; {}: it did not
    quality: dict[str, Any] = field(default_factory=dict[str, Any])  # what that cost: export_tools/quality.py
    layer_bytes: tuple[int, ...] = ()  # of weights, all layers; (): made by an older shardline
    embedding_bytes: int = 0
    head_bytes: int = 0
    static: StaticLimits | None = None  # for the static runner; None: not made for it
    drafts_for: str = ""  # of a draft model: digest of the tokenizer it was compared with (tokenizer_digest)

    def save(self, folder: Path) -> None:
        """Write manifest.json into the folder."""
        (folder / MANIFEST_NAME).write_bytes(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2))


def load_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a split. Raises ManifestError."""
    path = folder / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ManifestError(
            f"no {MANIFEST_NAME} in {folder}: run 'shard-export split … --out {folder}' first"
        ) from error
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error}") from error
    return parse_manifest(data, str(path))


def parse_manifest(data: bytes, path: str) -> Manifest:
    """A manifest from its bytes, which came from `path`. Raises ManifestError."""
    try:
        fields: dict[str, Any] = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ManifestError(f"{path} cannot be read: {error}") from error
    schema = fields.get("schema") if isinstance(fields, dict) else None  # type: ignore[reportUnnecessaryIsInstance]
    if schema != SCHEMA:
        raise ManifestError(
            f"{path} has schema {schema}, this shardline reads {SCHEMA}: "
            "install the shardline that made it, or split again"
        )
    try:
        manifest = read(Manifest, fields, exactly=True)
    except TypeError as error:
        raise ManifestError(f"{path} is not a manifest: {error}") from error
    for stage in manifest.stages:
        if stage.model not in {"", *(entry.path for entry in stage.files)}:
            raise ManifestError(f"{path} names the shard {stage.model!r} without a digest: it is not used")
    for entry in all_files(manifest):
        _check_entry(entry, path)
    return manifest


def all_files(manifest: Manifest) -> tuple[FileDigest, ...]:
    """The files of every stage, then those of the tokenizer."""
    return tuple(entry for stage in manifest.stages for entry in stage.files) + manifest.tokenizer_files


def _check_entry(entry: FileDigest, path: str) -> None:
    """A manifest may come from anywhere: it names nothing outside its folder."""
    parts = entry.path.split("/")
    if not all(_PART.fullmatch(part) for part in parts) or {".", ".."} & set(parts):
        raise ManifestError(f"{path} names the file {entry.path!r}, which is not inside the split: it is not used")
    if not _SHA256.fullmatch(entry.sha256) or entry.bytes < 0:
        raise ManifestError(f"{path} has no sha256 and size of {entry.path}: it is not used")


def digest_file(root: Path, path: Path) -> FileDigest:
    """Size and sha256 of a file, named relative to `root`."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return FileDigest(path=path.relative_to(root).as_posix(), bytes=path.stat().st_size, sha256=sha256)


def check_files(folder: Path, files: tuple[FileDigest, ...]) -> None:
    """Compare files on disk with their digests. Raises ManifestError naming the first that differs."""
    for entry in files:
        path = folder / entry.path
        if not path.is_file():
            raise ManifestError(f"{path} is missing: copy the whole split again")
        if digest_file(folder, path) != entry:
            raise ManifestError(f"{path} differs from the manifest (sha256): copy it again or split again")


def tokenizer_digest(manifest: Manifest) -> str:
    """What two splits with the same tokenizer files have in common."""
    digests = sorted(file.sha256 for file in manifest.tokenizer_files)
    return hashlib.sha256("\n".join([manifest.tokenizer_kind, *digests]).encode()).hexdigest()


def stage_manifest(manifest: Manifest, index: int) -> StageManifest:
    """The stage of that index. Raises ManifestError."""
    if not 0 <= index < len(manifest.stages):
        raise ManifestError(
            f"no stage {index}: this split has {len(manifest.stages)} stages, 0 to {len(manifest.stages) - 1}"
        )
    return manifest.stages[index]
