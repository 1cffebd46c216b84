"""Who may ask, and how often."""

import stat
from pathlib import Path

import pytest

from engine.contract.errors import UsageError
from engine.gateway import keys as module
from engine.gateway.errors import ApiError
from engine.gateway.keys import Key, Keys, new_key, parse_keys


def test_only_a_key_of_the_file_opens_and_the_file_does_not_tell_it(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    secret = new_key(path, "alice", per_minute=5)
    assert secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Keys(path).check(f"Bearer {secret}").name == "alice"
    for wrong in ("", "Bearer", "Bearer x", f"Basic {secret}", secret):
        with pytest.raises(ApiError) as caught:
            Keys(path).check(wrong)
        assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")


def test_a_line_that_is_deleted_closes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    secret, keys = new_key(path, "alice"), Keys(path)
    other = new_key(path, "bob")
    assert keys.check(f"Bearer {other}").name == "bob"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "alice" not in line))
    with pytest.raises(ApiError, match="wrong API key"):
        keys.check(f"Bearer {secret}")


def test_a_file_that_is_broken_later_keeps_the_keys_read_last(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    secret = new_key(path, "alice")
    keys = Keys(path)
    path.write_text("broken")
    assert keys.check(f"Bearer {secret}").name == "alice"
    with pytest.raises(UsageError, match="line 1"):
        Keys(path)
    path.unlink()
    assert keys.check(f"Bearer {secret}").name == "alice"


def test_a_key_has_so_many_requests_open_and_no_more() -> None:
    key = Key("a", concurrent=1)
    with key.use(), pytest.raises(ApiError) as caught, key.use():
        pass
    assert (caught.value.status, caught.value.headers["retry-after"]) == (429, "1")
    with key.use():
        pass


def test_a_minute_later_there_is_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    key, now = Key("a", per_minute=2), [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    for now[0] in (0.0, 10.0):
        with key.use():
            pass
    now[0] = 30.0
    with pytest.raises(ApiError) as caught, key.use():
        pass
    assert caught.value.headers["retry-after"] == "31"
    now[0] = 61.0
    with key.use():
        pass


@pytest.mark.parametrize("line", ["alice", "alice abc", f"alice {'0' * 64} rpm=3", f"alice {'0' * 64} concurrent=x"])
def test_a_line_that_is_wrong_is_named(line: str) -> None:
    with pytest.raises(UsageError, match="line 2"):
        parse_keys("# keys\n" + line)
