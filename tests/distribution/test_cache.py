"""What a machine keeps of files that are on their way."""

from pathlib import Path

import pytest

from engine.contract.errors import TransferError
from engine.contract.manifest import FileDigest, digest_file
from engine.distribution.cache import Slot, place, sha256, slot_if_free
from engine.distribution.pieces import CHUNK_BYTES, pieces_of

DATA = bytes(range(256)) * (CHUNK_BYTES // 256) + b"x" * CHUNK_BYTES + b"end"


@pytest.fixture
def entry(tmp_path: Path) -> FileDigest:
    (tmp_path / "file").write_bytes(DATA)
    return digest_file(tmp_path, tmp_path / "file")


def held(cache: Path, entry: FileDigest) -> Slot:
    (home := cache / entry.sha256).mkdir(parents=True, exist_ok=True)
    return Slot(home, entry)


def fill(slot: Slot, *numbers: int) -> None:
    for piece in pieces_of(len(DATA)):
        if piece.number in numbers:
            data = DATA[piece.start : piece.start + piece.length]
            slot.write(piece, data, sha256(data))


def test_pieces_that_came_before_a_restart_are_not_fetched_again(tmp_path: Path, entry: FileDigest) -> None:
    slot = held(tmp_path, entry)
    assert slot.begin() == set()
    fill(slot, 0, 2)
    again = held(tmp_path, entry)
    assert again.begin() == {0, 2}
    fill(again, 1)
    again.finish()
    assert again.ready()
    assert again.data.read_bytes() == DATA


def test_a_piece_that_did_not_reach_the_disk_is_fetched_again(tmp_path: Path, entry: FileDigest) -> None:
    slot = held(tmp_path, entry)
    slot.begin()
    fill(slot, 0, 1, 2)
    with (tmp_path / entry.sha256 / "part").open("r+b") as part:  # as after a power cut
        part.seek(CHUNK_BYTES + 5)
        part.write(b"?")
    assert held(tmp_path, entry).begin() == {0, 2}


@pytest.mark.parametrize("journal", ["0", "0 12", "9 " + "a" * 64, "x y", "-1 " + "a" * 64])
def test_a_journal_that_was_cut_or_damaged_costs_only_its_line(tmp_path: Path, entry: FileDigest, journal: str) -> None:
    slot = held(tmp_path, entry)
    slot.begin()
    fill(slot, 1)
    with (tmp_path / entry.sha256 / "done").open("a") as done:
        done.write(journal)
    assert held(tmp_path, entry).begin() == {1}


def test_pieces_that_do_not_make_the_file_are_all_dropped(tmp_path: Path, entry: FileDigest) -> None:
    slot = held(tmp_path, entry)
    slot.begin()
    fill(slot, 0, 1)
    last = pieces_of(len(DATA))[2]
    slot.write(last, b"END", sha256(b"END"))  # its digest is right, the file's is not
    with pytest.raises(TransferError, match="file on the broker is not the file in the manifest"):
        slot.finish()
    assert not slot.ready()
    assert slot.begin() == set()


def test_a_file_that_was_altered_in_the_cache_is_not_used(tmp_path: Path, entry: FileDigest) -> None:
    slot = held(tmp_path, entry)
    slot.data.write_bytes(DATA[:-1] + b"!")
    assert not slot.ready()
    assert not slot.data.exists()


def test_a_file_is_held_by_one_at_a_time(tmp_path: Path, entry: FileDigest) -> None:
    with slot_if_free(tmp_path, entry) as first, slot_if_free(tmp_path, entry) as second:
        assert first is not None
        assert second is None
    with slot_if_free(tmp_path, entry) as third:
        assert third is not None


def test_a_placed_file_takes_no_room_of_its_own_and_replaces_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"new")
    target = tmp_path / "split" / "file"
    target.parent.mkdir()
    target.write_bytes(b"old")
    place(tmp_path / "data", target)
    assert target.read_bytes() == b"new"
    assert target.samefile(tmp_path / "data")
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_a_full_disk_is_named_before_anything_is_fetched(tmp_path: Path, entry: FileDigest) -> None:
    with pytest.raises(TransferError, match=r"no room for file .* SHARDLINE_CACHE"):
        held(tmp_path, entry).check_room(1 << 60)
