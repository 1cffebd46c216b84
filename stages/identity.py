"""Who a worker is: what does not change from start to end."""

import os
import platform
import secrets
import time
from dataclasses import dataclass

from engine.contract.control import MAIN_PIPELINE, KvPrecision, Profile
from engine.contract.ids import Incarnation, StageIndex
from engine.contract.manifest import Manifest
from stages.runner import RunnerKind
from stages.settings import RunnerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One life of one worker process."""

    stage: StageIndex
    stages: int
    first_layer: int
    last_layer: int  # half-open
    incarnation: Incarnation
    model: str  # slug
    split: str
    runner: RunnerKind
    profile: Profile
    device: str
    host: str
    pid: int
    kv_precision: KvPrecision = "f32"
    dynamic_quantization: bool = True
    threads: int = 0  # 0: as the device likes
    pipeline: str = MAIN_PIPELINE

    @property
    def last(self) -> bool:
        """Whether results go to the decoder."""
        return self.stage == self.stages - 1

    def describe(self) -> str:
        """For people: place, layers, model and how it runs."""
        return (
            f"stage {self.stage} of {self.stages}, layers [{self.first_layer}, {self.last_layer}) of {self.model}, "
            f"{self.runner} {self.profile} on {self.device}"
            + (f", pipeline {self.pipeline}" if self.pipeline != MAIN_PIPELINE else "")
        )


def new_incarnation() -> Incarnation:
    """Milliseconds since 1970, then 16 random bits: ordered by start, distinct, and below 2**63."""
    return Incarnation(time.time_ns() // 1_000_000 << 16 | secrets.randbits(16))


def identify(manifest: Manifest, index: int, options: RunnerOptions, *, pipeline: str = MAIN_PIPELINE) -> Identity:
    """The identity of this process as the worker of one stage."""
    stage = manifest.stages[index]
    return Identity(
        stage=StageIndex(index),
        stages=len(manifest.stages),
        first_layer=stage.first_layer,
        last_layer=stage.last_layer,
        incarnation=new_incarnation(),
        model=manifest.slug,
        split=manifest.split,
        runner=options.kind,
        profile=options.profile,
        device=options.device,
        host=platform.node(),
        pid=os.getpid(),
        kv_precision=options.cache_precision,
        dynamic_quantization=options.dynamic_quantization,
        threads=options.threads,
        pipeline=pipeline,
    )
