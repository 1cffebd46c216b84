"""What a worker says of itself every second."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import psutil

from engine.contract.control import PROTOCOL_VERSION, StageHeartbeat, WorkerState
from engine.contract.figures import Link
from engine.transport.base import Inbox
from stages.core import StageCore
from stages.identity import Identity
from stages.load import Load
from stages.place import Place
from stages.pump import Pump
from stages.runner import Capabilities, Runner

_NOTHING_YET = Capabilities(
    kind="paged", blocks=0, block_size=0, slots=0, min_row_tokens=0, max_step_tokens=0, context_length=0
)
_PROCESS = psutil.Process()
NO_LINK: Final = Link()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A shard ready to run, and what the self-test found."""

    runner: Runner
    equalities: dict[str, bool] = field(default_factory=dict[str, bool])
    numerics: str = ""  # how it computes (stages.numerics)
    check: Callable[[], None] = lambda: None  # raises DeviceError when the device does not compute; blocks


@dataclass(frozen=True, slots=True)
class AtWork:
    """The parts of a worker that takes work."""

    loaded: Loaded
    core: StageCore
    pump: Pump
    inbox: Inbox


def heartbeat(
    identity: Identity,
    state: WorkerState,
    load: Load,
    work: AtWork | None,
    place: Place | None = None,
    link: Link = NO_LINK,
) -> StageHeartbeat:
    """The heartbeat of this moment; `work` is None while loading."""
    now = time.monotonic()
    can = work.loaded.runner.capabilities if work else _NOTHING_YET
    p50, p95 = load.step_ms(now)
    oldest = work.inbox.oldest if work else None
    return StageHeartbeat(
        stage=identity.stage,
        stages=identity.stages,
        incarnation=identity.incarnation,
        state=state,
        epoch=work.core.epoch if work else 0,
        model=identity.model,
        split=identity.split,
        protocol=PROTOCOL_VERSION,
        profile=identity.profile,
        runner=identity.runner,
        device=identity.device,
        host=identity.host,
        pid=identity.pid,
        blocks=can.blocks,
        block_size=can.block_size,
        slots=can.slots,
        min_row_tokens=can.min_row_tokens,
        max_step_tokens=can.max_step_tokens,
        context_length=can.context_length,
        window=can.window,
        waiting=work.inbox.waiting + work.pump.waiting if work else 0,
        oldest_ms=(now - oldest) * 1e3 if oldest is not None else 0.0,
        busy_share=load.busy_share(now),
        step_ms_p50=p50,
        step_ms_p95=p95,
        steps=load.computed,
        refused=work.core.refused + work.inbox.dropped if work else 0,
        memory_mb=_PROCESS.memory_info().rss / 1e6,
        kv_precision=identity.kv_precision,
        dynamic_quantization=identity.dynamic_quantization,
        threads=identity.threads,
        standby=place is not None and place.standby,
        yields=place.yields if place else "",
        pipeline=identity.pipeline,
        equalities=work.loaded.equalities if work else {},
        numerics=work.loaded.numerics if work else "",
        busy_seconds=load.busy_seconds,
        step_seconds=load.step_seconds.histogram(),
        refusals=_refusals(work) if work else {},
        link=link,
    )


def _refusals(work: AtWork) -> dict[str, int]:
    """By code; "inbox_full" is what came faster than it was taken."""
    return dict(work.core.refusals) | ({"inbox_full": work.inbox.dropped} if work.inbox.dropped else {})
