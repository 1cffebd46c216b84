"""Builds stage by stage: tensors by layer, what is finished, what goes on. Processes are replaced by a function."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.contract.errors import CutError, ShardlineError, UsageError
from engine.contract.manifest import load_manifest
from export_tools.compress import WeightOptions
from export_tools.sliced.build import build_sliced
from export_tools.sliced.checkpoint import CannotSliceError, estimate, read_checkpoint
from export_tools.sliced.process import checked, run
from export_tools.sliced.worker import renumber
from export_tools.split import SplitOptions

LAYERS = 4


def write_tensors(path: Path, tensors: Mapping[str, tuple[int, ...]], dtype: str = "BF16") -> None:
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "model"
    target.mkdir()
    layers = {f"model.layers.{layer}.up.weight": (8, 10) for layer in range(LAYERS)}
    write_tensors(target / "a.safetensors", {"model.embed_tokens.weight": (50, 8), "model.norm.weight": (8,)})
    write_tensors(target / "b.safetensors", layers)
    config = {"num_hidden_layers": LAYERS, "max_position_embeddings": 64, "eos_token_id": 2, "bos_token_id": 1}
    (target / "config.json").write_text(json.dumps(config))
    (target / "tokenizer.json").write_text("{}")
    return target


class Worker:
    """Answers jobs as export_tools.sliced.worker does, and counts them."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.jobs: list[tuple[str, int]] = []
        self._fails_at = fails_at

    def __call__(self, job: Mapping[str, Any]) -> dict[str, Any]:
        self.jobs.append((job["task"], job["index"]))
        if job["index"] == self._fails_at:
            raise KeyboardInterrupt
        if job["task"] == "convert":
            Path(job["target"]).mkdir()
            return {"peak": 1 << 30}
        return {**_stored(job), "peak": 1 << 20}

    @property
    def built(self) -> list[int]:
        return [index for task, index in self.jobs if task == "store"]


def _stored(job: Mapping[str, Any]) -> dict[str, Any]:
    import hashlib  # noqa: PLC0415

    index, first, last = job["index"], job["first"], job["last"]
    path = Path(job["target"]) / f"stage{index}" / "openvino_model.xml"
    path.parent.mkdir(parents=True)
    path.write_text(f"layers {first} to {last}")
    data = path.read_bytes()
    name = f"stage{index}/openvino_model.xml"
    digest = {"path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {
        "stage": {
            "index": index,
            "first_layer": first,
            "last_layer": last,
            "model": name,
            "files": [digest],
            "weight_bytes": 100,
        },
        "facts": {
            "layers": last - first + 2,
            "hidden_size": 8,
            "vocabulary": 50 if last == LAYERS else 64,
            "kv_bytes_per_token": 7 * (last - first),
        },
        "layers": [100 + layer for layer in range(first, last)],
        "embedding": 400 if first == 0 else 0,
        "head": 300 if last == LAYERS else 0,
    }


def options(out: Path, **changes: Any) -> SplitOptions:
    return SplitOptions(**{"out": out, "stages": 0, "layers": (1, 2, 1), **changes})


def test_tensors_are_sorted_by_layer_whatever_file_they_are_in(folder: Path) -> None:
    checkpoint = read_checkpoint(folder, LAYERS)
    assert {tensor.name for tensor in checkpoint.of_layer(2).values()} == {"model.layers.2.up.weight"}
    assert [tensor.name for tensor in checkpoint.tensors if tensor.layer is None] == [
        "model.embed_tokens.weight",
        "model.norm.weight",
    ]
    assert checkpoint.sixteen_bits


def test_the_plan_counts_tables_in_eight_bits_beside_layers_in_four(folder: Path) -> None:
    weights = estimate(read_checkpoint(folder, LAYERS), WeightOptions(kind="int4"))
    assert (weights.layers, weights.embedding, weights.head) == ((40,) * LAYERS, 400, 400)


@pytest.mark.parametrize(
    ("name", "what"),
    [("model.layers.9.up.weight", "not numbered"), ("visual.blocks.0.up.weight", "model.layers, visual.blocks")],
)
def test_other_numbered_tensors_are_a_reason_to_export_whole(name: str, what: str, folder: Path) -> None:
    write_tensors(folder / "c.safetensors", {name: (8, 10)})
    with pytest.raises(CannotSliceError, match=what):
        read_checkpoint(folder, LAYERS)


def index_of(folder: Path, *names: str) -> None:
    weights = {f"tensor {at}": name for at, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))


def test_files_that_the_index_does_not_name_are_not_read(folder: Path) -> None:
    write_tensors(folder / "consolidated.safetensors", {"layers.0.attention.wq": (8, 10)})
    index_of(folder, "a.safetensors", "b.safetensors")
    assert len(read_checkpoint(folder, LAYERS).tensors) == LAYERS + 2


def test_a_file_that_the_index_names_and_is_not_there_is_named(folder: Path) -> None:
    index_of(folder, "a.safetensors", "z.safetensors")
    with pytest.raises(UsageError, match=r"no z\.safetensors"):
        read_checkpoint(folder, LAYERS)


def test_packed_weights_are_a_reason_to_export_whole(folder: Path) -> None:
    write_tensors(folder / "c.safetensors", {"model.scales": (8, 10)}, dtype="F8_E4M3")
    with pytest.raises(CannotSliceError, match="F8_E4M3"):
        read_checkpoint(folder, LAYERS)


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, struct.pack("<Q", 4) + b"{no}"])
def test_a_broken_file_is_named(data: bytes, folder: Path) -> None:
    (folder / "c.safetensors").write_bytes(data)
    with pytest.raises(UsageError, match=r"c\.safetensors"):
        read_checkpoint(folder, LAYERS)


def test_the_manifest_puts_together_what_the_stages_found(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    build_sliced(folder, options(tmp_path / "out"), said.append, Worker())
    manifest = load_manifest(tmp_path / "out")
    assert [(stage.first_layer, stage.last_layer) for stage in manifest.stages] == [(0, 1), (1, 3), (3, 4)]
    assert (manifest.layers, manifest.vocabulary, manifest.kv_bytes_per_token) == (4, 50, 28)
    assert (manifest.layer_bytes, manifest.embedding_bytes, manifest.head_bytes) == ((100, 101, 102, 103), 400, 300)
    assert (manifest.context_length, manifest.eos_ids, manifest.name) == (64, (2,), "model")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert "left" in said[1]
    assert "1.0 GiB of memory" in said[1]


def test_an_interrupted_build_goes_on_behind_its_last_finished_stage(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_sliced(folder, options(tmp_path / "out"), lambda _: None, Worker(fails_at=1))
    assert not (tmp_path / "out").exists()
    again = Worker()
    build_sliced(folder, options(tmp_path / "out"), lambda _: None, again)
    assert again.built == [1, 2]
    assert len(load_manifest(tmp_path / "out").stages) == 3


@pytest.mark.parametrize(
    "changes", [{"weights": WeightOptions(kind="int8")}, {"layers": (1, 1, 2)}, {"beam_gather": False}]
)
def test_with_other_options_nothing_is_taken_over(changes: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_sliced(folder, options(tmp_path / "out"), lambda _: None, Worker(fails_at=1))
    again = Worker()
    build_sliced(folder, options(tmp_path / "out", **changes), lambda _: None, again)
    assert again.built == [0, 1, 2]


def test_with_other_weights_nothing_is_taken_over(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_sliced(folder, options(tmp_path / "out"), lambda _: None, Worker(fails_at=1))
    data = bytearray((folder / "b.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "b.safetensors").write_bytes(data)
    again = Worker()
    build_sliced(folder, options(tmp_path / "out"), lambda _: None, again)
    assert again.built == [0, 1, 2]


def test_a_finished_stage_that_was_altered_is_built_again(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_sliced(folder, options(tmp_path / "out"), lambda _: None, Worker(fails_at=2))
    (tmp_path / ".out.building" / "split" / "stage1" / "openvino_model.xml").write_text("cut short")
    said: list[str] = []
    again = Worker()
    build_sliced(folder, options(tmp_path / "out"), said.append, again)
    assert again.built == [1, 2]
    assert any("stage 1" in line and "built again" in line for line in said)


def test_what_cannot_be_sliced_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    def refuse(_: Mapping[str, Any]) -> dict[str, Any]:
        return checked({"error": "CannotSliceError", "message": "its layers differ"})

    with pytest.raises(CannotSliceError, match="its layers differ"):
        build_sliced(folder, options(tmp_path / "out"), lambda _: None, refuse)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_is_refused_before_a_stage_is_finished_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    def refuse(_: Mapping[str, Any]) -> dict[str, Any]:
        return checked({"error": "UsageError", "message": "--group-size 48"})

    with pytest.raises(UsageError, match="--group-size"):
        build_sliced(folder, options(tmp_path / "out"), lambda _: None, refuse)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_share_of_the_layers_needs_all_of_them(folder: Path, tmp_path: Path) -> None:
    wanted = options(tmp_path / "out", weights=WeightOptions(kind="int4", ratio=0.5))
    with pytest.raises(CannotSliceError, match="--ratio"):
        build_sliced(folder, wanted, lambda _: None, Worker())


def test_an_error_of_a_worker_keeps_its_kind() -> None:
    with pytest.raises(CutError, match="this cut"):
        checked({"error": "CutError", "message": "this cut"})


def test_a_worker_that_dies_is_told_with_its_stage() -> None:
    with pytest.raises(ShardlineError, match=r"stage 3 could not be built \(nothing\)"):
        run({"task": "nothing", "index": 3})


def test_states_and_operations_get_the_numbers_of_their_layers(tmp_path: Path) -> None:
    path = tmp_path / "shard.xml"
    path.write_text('<a variable_id="past_key_values.1.keypresent.1.key" name="__module.model.layers.0.mlp/1.5"/>')
    renumber(path, 7)
    assert path.read_text() == (
        '<a variable_id="past_key_values.8.keypresent.8.key" name="__module.model.layers.7.mlp/1.5"/>'
    )
