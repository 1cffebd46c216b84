import struct
import sys
from pathlib import Path

import pytest

from engine.contract.errors import UsageError
from export_tools.sources.gguf_header import read_header
from export_tools.sources.open import open_source


def gguf(**values: "str | int | list[int]") -> bytes:
    """A GGUF header with these keys and no tensors."""
    out = struct.pack("<4sIQQ", b"GGUF", 3, 0, len(values))
    for key, value in values.items():
        name = key.encode()
        out += struct.pack("<Q", len(name)) + name
        if isinstance(value, str):
            out += struct.pack("<IQ", 8, len(value.encode())) + value.encode()
        elif isinstance(value, int):
            out += struct.pack("<II", 4, value)
        else:
            out += struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value)
    return out


def test_the_header_of_a_gguf_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf(name="née", length=8192, list=[1, 2, 3]))
    assert read_header(path) == {"name": "née", "length": 8192, "list": [1, 2, 3]}


def test_a_header_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "x.gguf", gguf(name="x", length=3)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(UsageError):
            read_header(path)


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught, open_source(path):
        pass
    return str(caught.value)


def test_what_is_not_a_model_is_refused_by_name(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "nothing")
    assert "openvino_model.xml" in refused(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    assert "neither a folder" in refused(tmp_path / "notes.txt")
    (tmp_path / "false.gguf").write_text("not GGUF")
    assert "not a GGUF file" in refused(tmp_path / "false.gguf")


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    for end in ("xml", "bin"):
        (tmp_path / f"openvino_model.{end}").touch()
    assert "tokenizer" in refused(tmp_path)


def test_a_hugging_face_folder_without_optimum_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optimum", None)  # as where the [export] extra is not installed
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    assert "pip install 'shardline[export]'" in refused(tmp_path)
