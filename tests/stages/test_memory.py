from pathlib import Path

import pytest

from engine.contract.errors import UsageError
from stages.config import parse_kv_memory
from stages.memory import AUTO, KvShare, Memory, measure_memory, pool_bytes, within_limits
from stages.settings import RunnerOptions, compile_properties

GIB = 1 << 30
MACHINE = Memory(total=64 * GIB, free=40 * GIB)


def test_the_system_keeps_a_tenth_of_the_memory_and_one_gib_at_least() -> None:
    assert Memory(64 * GIB, 40 * GIB).spare == 40 * GIB - int(6.4 * GIB)
    assert Memory(4 * GIB, 3 * GIB).spare == 2 * GIB
    assert Memory(4 * GIB, GIB // 2).spare == 0


def test_two_workers_on_auto_share_what_is_there() -> None:
    """Neither has touched its cache when the other one measures."""
    one = pool_bytes(AUTO, MACHINE, token_bytes=1e6, context_length=100_000)
    assert 2 * one <= MACHINE.spare < 2 * one + 2


def test_a_share_is_of_what_the_system_leaves() -> None:
    assert pool_bytes(KvShare(0.25), MACHINE, token_bytes=1e6, context_length=100_000) == MACHINE.spare // 4


def test_no_share_is_larger_than_all_sequences_of_a_decoder_need() -> None:
    assert pool_bytes(AUTO, MACHINE, token_bytes=1000, context_length=1024) == 64 * 1024 * 1000


def test_a_size_is_taken_as_it_is() -> None:
    assert pool_bytes(123, Memory(GIB, 0), token_bytes=1, context_length=1) == 123


@pytest.mark.parametrize(
    ("text", "meaning"), [("auto", AUTO), ("25%", KvShare(0.25)), (" 100 %", KvShare(1.0)), ("2GiB", 2 * GIB)]
)
def test_memory_for_the_cache_is_written_in_three_ways(text: str, meaning: int | KvShare) -> None:
    assert parse_kv_memory(text) == meaning


@pytest.mark.parametrize("text", ["0%", "101%", "%", "-5%", "much", ""])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_kv_memory(text)


def group(folder: Path, limit: str, used: int, inactive: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")


def test_a_container_ends_where_its_limit_is(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("4:memory:/old\n0::/system.slice/stage.service\n")
    group(tmp_path / "system.slice", str(16 * GIB), 10 * GIB)
    group(tmp_path / "system.slice" / "stage.service", str(8 * GIB), 3 * GIB, inactive=GIB)
    assert within_limits(MACHINE, own, tmp_path) == Memory(8 * GIB, 6 * GIB)
    group(tmp_path / "system.slice" / "stage.service", "max", 3 * GIB)
    assert within_limits(MACHINE, own, tmp_path) == Memory(16 * GIB, 6 * GIB)
    group(tmp_path / "system.slice", str(16 * GIB), 17 * GIB)
    assert within_limits(MACHINE, own, tmp_path).free == 0


def test_without_control_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert within_limits(MACHINE, tmp_path / "missing", tmp_path) == MACHINE
    (tmp_path / "cgroup").write_text("0::/\n")
    assert within_limits(MACHINE, tmp_path / "cgroup", tmp_path) == MACHINE


def test_memory_can_be_measured_here() -> None:
    found = measure_memory()
    assert 0 < found.free < found.total


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"kv_precision": "u8"}, "profile exact keeps its KV cache in f32: --kv-precision u8 needs --profile fast"),
        ({"kv_precision": "f16"}, "--kv-precision f16 needs --profile fast"),
        ({"profile": "fast", "kv_precision": "f32"}, "take --profile exact"),
        ({"profile": "fast", "kind": "stateful", "kv_precision": "u8"}, "needs --runner paged"),
    ],
)
def test_a_precision_that_a_profile_does_not_have_is_refused(options: dict[str, str], names: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunnerOptions(**options)  # type: ignore[arg-type]
    assert names in str(caught.value)


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        (RunnerOptions(), "f32"),
        (RunnerOptions(profile="fast"), "f16"),
        (RunnerOptions(profile="fast", kv_precision="u8"), "u8"),
    ],
)
def test_the_device_is_told_the_precision(options: RunnerOptions, precision: str) -> None:
    assert options.cache_precision == precision
    assert compile_properties(options)["KV_CACHE_PRECISION"] == precision
    assert ("KEY_CACHE_QUANT_MODE" in compile_properties(options)) == (precision == "u8")
