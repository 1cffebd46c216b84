from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.contract.errors import DeviceError
from engine.contract.facts import Device
from engine.contract.manifest import load_manifest
from stages.checks import ShardShape
from stages.loader import shard_shape
from stages.numerics import describe, fingerprint
from stages.selftest import check_device, self_test
from stages.settings import RunnerOptions
from tests.conftest import Shards
from tests.manifests import HIDDEN
from tests.stages.fakes import AddingShard
from tests.stages.test_runners import load

DEVICE = Device(name="CPU", full_name="A processor", plugin="2026.4.1", capabilities=("FP32",))
OPTIONS = RunnerOptions(threads=1)


def word(device: Device = DEVICE, options: RunnerOptions = OPTIONS, computed: str = "c") -> str:
    return fingerprint(describe(device, options), computed)


def test_what_decides_about_bits_is_in_the_fingerprint() -> None:
    others = [
        word(replace(DEVICE, full_name="Another processor")),
        word(replace(DEVICE, plugin="2027.1.0")),
        word(replace(DEVICE, properties={"GPU_DRIVER_VERSION": "7"})),
        word(options=RunnerOptions(kind="stateful")),
        word(options=RunnerOptions(profile="fast")),
        word(options=RunnerOptions(profile="fast", kv_precision="u8")),
        word(options=RunnerOptions(dynamic_quantization=False)),
        word(computed="d"),
    ]
    assert len({word(), *others}) == 1 + len(others)


def test_what_changes_no_bit_is_not() -> None:
    for same in (RunnerOptions(threads=2), RunnerOptions(kv_bytes=1 << 20), RunnerOptions(cache=Path("elsewhere"))):
        assert word(options=same) == word()
    assert word(replace(DEVICE, properties={"DEVICE_UUID": "1"})) == word()


@pytest.mark.model
def test_workers_of_one_machine_and_settings_compute_the_same_and_other_settings_something_else(
    shards: Shards,
) -> None:
    folder = shards(2)
    manifest = load_manifest(folder)
    for index in (0, 1):
        wanted: list[tuple[Any, dict[str, Any]]] = [
            ("paged", {}),
            ("paged", {"threads": 2}),
            ("stateful", {}),
            ("paged", {"profile": "fast"}),
        ]
        found: list[str] = []
        for kind, changes in wanted:
            runner = load(folder, kind, index, **changes)
            found.append(self_test(runner, shard_shape(manifest, index)).computed)
            check_device(runner, shard_shape(manifest, index))
            runner.close()
        assert found[0] == found[1]
        assert len(set(found)) == 3


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_device_that_computes_no_numbers_is_no_device(value: float) -> None:
    shard: Any = AddingShard()
    shape = ShardShape(first=True, last=False, hidden_size=HIDDEN, vocabulary=16)
    check_device(shard, shape)
    right = shard.infer
    shard.infer = lambda rows, tokens: right(rows, tokens) * value
    with pytest.raises(DeviceError, match="no numbers"):
        check_device(shard, shape)
