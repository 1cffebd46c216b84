"""From a Hugging Face folder to compressed shards: `shard-export build`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from engine.contract.manifest import load_manifest
from tests.families.parity import run

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama as save_pretrained writes it."""
    from tests.families.models import random_model  # noqa: PLC0415

    target = tmp_path_factory.mktemp("huggingface")
    save(random_model("llama"), target)
    return target


def save(model: Any, target: Path) -> None:
    """A model and a tokenizer of words."""
    from tests.families.models import VOCABULARY  # noqa: PLC0415

    model.save_pretrained(target)
    save_tokenizer(target, VOCABULARY)


def save_tokenizer(target: Path, vocabulary: int) -> None:
    """A tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocabulary)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    words.save(str(target / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w2", "bos_token": "w1"}
    (target / "tokenizer_config.json").write_text(json.dumps(config))


def command(*words: str) -> Any:
    from typer.testing import CliRunner  # noqa: PLC0415  warns at import, with the click of this environment

    from export_tools.cli import app  # noqa: PLC0415

    return CliRunner().invoke(app, words)


def build(folder: Path, out: Path, *options: str) -> str:
    result = command("build", str(folder), "--out", str(out), *options)
    return result.output if result.exit_code else ""


def kinds(out: Path) -> set[str]:
    found: set[str] = set()
    for model in out.glob("stage*/openvino_model.xml"):
        constants = [node for node in ov.Core().read_model(model).get_ops() if node.get_type_name() == "Constant"]
        large = [node for node in constants if int(np.prod(node.get_output_shape(0))) > 1000]
        found |= {node.get_element_type().get_type_name() for node in large}
    return found


@pytest.mark.parametrize(
    ("options", "types"),
    [
        (["--weights", "f32"], {"f32"}),
        (["--weights", "f16"], {"f16"}),
        (["--weights", "int8"], {"u8"}),
        (["--weights", "int4", "--group-size", "32"], {"i4", "u8"}),
        (["--weights", "int4", "--group-size", "32", "--asym"], {"u4", "u8"}),
    ],
)
def test_weights_are_kept_in_what_was_asked_for(
    options: list[str], types: set[str], folder: Path, tmp_path: Path
) -> None:
    options = [*options, "--at-once", "--no-quality"]  # stage by stage: test_sliced.py
    assert build(folder, tmp_path / "one", "--stages", "1", *options) == ""
    assert build(folder, tmp_path / "two", "--layers", "1,3", *options) == ""
    scales = set() if types <= {"f16", "f32"} else {"f16", "f32"}
    assert kinds(tmp_path / "two") - scales == types
    assert load_manifest(tmp_path / "two").weights.get("kind", "f32") == options[1]
    (one, tokens), (two, again) = run(tmp_path / "one", "paged"), run(tmp_path / "two", "paged")
    assert tokens == again
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("way", [["--awq"], ["--ratio", "0.5"]])
def test_what_looks_at_all_layers_is_exported_at_once_and_says_so(way: list[str], folder: Path, tmp_path: Path) -> None:
    words = ["--stages", "2", "--weights", "int4", "--group-size", "32", *way]
    result = command("build", str(folder), "--out", str(tmp_path / "out"), *words)
    assert result.exit_code == 0, result.output
    assert f"at once, with memory for the whole model: {way[0]}" in result.stderr
    assert load_manifest(tmp_path / "out").quality["positions"] > 0


def test_fewer_bits_cost_more_and_the_manifest_says_how_much(folder: Path, tmp_path: Path) -> None:
    for name in ("f16", "int8", "int4"):
        words = ["--weights", name, "--group-size", "32", "--stages", "2", "--at-once"]
        assert build(folder, tmp_path / name, *words) == ""
    found = [load_manifest(tmp_path / name).quality for name in ("f16", "int8", "int4")]
    assert found[0]["divergence"] < found[1]["divergence"] < found[2]["divergence"]
    assert found[0]["same_token"] >= found[2]["same_token"]
    assert len({quality["source_perplexity"] for quality in found}) == 1


def test_verify_compares_with_the_source_compressed_in_the_same_way(folder: Path, tmp_path: Path) -> None:
    words = ["--stages", "2", "--weights", "int4", "--group-size", "32", "--no-quality"]  # in processes of its own
    assert build(folder, tmp_path / "out", *words) == ""
    result = command("verify", str(tmp_path / "out"), "--json")
    assert json.loads(result.stdout)["largest_difference"] == 0, result.output


def test_a_group_size_that_does_not_divide_is_refused_with_one_that_does(folder: Path, tmp_path: Path) -> None:
    said = " ".join(build(folder, tmp_path / "out", "--stages", "2", "--weights", "int4", "--group-size", "48").split())
    assert "--group-size 48" in said
    assert "64 does" in said
    assert not list(tmp_path.iterdir())


def test_weights_that_are_compressed_are_not_compressed_again(folder: Path, tmp_path: Path) -> None:
    from tests.families.models import convert, random_model  # noqa: PLC0415

    convert(random_model("llama"), tmp_path / "ir")
    import nncf  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    path = tmp_path / "ir" / "openvino_model.xml"
    model = nncf.compress_weights(ov.Core().read_model(path))
    ov.save_model(model, tmp_path / "ir8.xml")
    (tmp_path / "ir8.xml").replace(path)
    (tmp_path / "ir8.bin").replace(path.with_suffix(".bin"))
    (tmp_path / "ir" / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    assert "u8 already" in " ".join(build(tmp_path / "ir", tmp_path / "out", "--stages", "2").split())
