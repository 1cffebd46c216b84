"""`stage-run` with a device that takes the process along when it is given certain tokens in a row."""

import os
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from engine.contract.manifest import Manifest
from engine.contract.messages import Rows
from stages import cli
from stages.config import StageConfig
from stages.heartbeat import Loaded

POISON = sys.argv.pop(1)
load_shard = cli.load_shard


class Crashing:
    """A runner around another one."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def infer(self, rows: Rows, value: Any) -> Any:
        if f",{POISON}," in f",{','.join(map(str, np.ravel(value).tolist()))},":
            os._exit(139)  # as a segmentation fault in native code does
        return self._runner.infer(rows, value)


def load(config: StageConfig, manifest: Manifest) -> Loaded:
    loaded = load_shard(config, manifest)
    return replace(loaded, runner=Crashing(loaded.runner))


cli.load_shard = load
cli.app()
