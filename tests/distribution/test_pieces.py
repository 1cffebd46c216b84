from pathlib import Path

import pytest

from engine.contract.errors import ManifestError
from engine.distribution.pieces import Need, Piece, distinct, needed, pieces_of
from tests.distribution.splits import make_split


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, ()),
        (1, (Piece(0, 0, 1),)),
        (10, (Piece(0, 0, 10),)),
        (11, (Piece(0, 0, 10), Piece(1, 10, 1))),
        (30, (Piece(0, 0, 10), Piece(1, 10, 10), Piece(2, 20, 10))),
    ],
)
def test_pieces_are_a_file_without_gaps(size: int, expected: tuple[Piece, ...]) -> None:
    assert pieces_of(size, 10) == expected


def test_a_stage_needs_its_own_files_and_a_decoder_the_tokenizer(tmp_path: Path) -> None:
    manifest = make_split(tmp_path)

    def paths(need: Need) -> set[str]:
        return {entry.path for entry in needed(manifest, need)}

    assert paths(Need(stages=(1,))) == {"stage1/openvino_model.xml", "stage1/openvino_model.bin"}
    assert paths(Need(tokenizer=True)) == {"tokenizer/tokenizer.json", "tokenizer/empty"}
    assert len(paths(Need(stages=(0, 1, 0), tokenizer=True))) == len(paths(Need())) == 6


def test_a_stage_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="no stage 2"):
        needed(make_split(tmp_path), Need(stages=(2,)))


def test_what_is_the_same_is_there_once_and_in_order(tmp_path: Path) -> None:
    paths = [entry.path for entry in distinct(needed(make_split(tmp_path), Need()))]
    assert paths == [
        "stage0/openvino_model.xml",
        "stage0/openvino_model.bin",
        "stage1/openvino_model.bin",
        "tokenizer/tokenizer.json",
        "tokenizer/empty",
    ]
