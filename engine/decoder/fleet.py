"""Who is there: heartbeats of workers in, the chain of the next epoch out. No I/O, no clock of its own."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import chain as joined
from typing import Final

from engine.contract.control import PROTOCOL_VERSION, SUSPECT_SECONDS, StageHeartbeat
from engine.contract.ids import Incarnation

DISTRUST_SECONDS: Final = 10.0  # after an Open that it did not answer, a worker is the last choice of its stage
_NUMERICS: Final[Mapping[str, Callable[[StageHeartbeat], str]]] = {  # settings that change numbers; "": not said
    "profile": lambda h: h.profile,
    "KV precision": lambda h: h.kv_precision,
    "dynamic quantization": lambda h: "with it" if h.dynamic_quantization else "without it",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker's latest heartbeat and when it came."""

    heartbeat: StageHeartbeat
    at: float  # seconds


@dataclass(frozen=True, slots=True)
class Concern:
    """Why a worker of the present chain should be replaced by another that is there."""

    text: str
    urgent: bool  # nothing will come from it; else it finishes the steps in flight


class Fleet:
    """The workers that could serve this split."""

    def __init__(self, *, split: str, stages: int) -> None:
        self.split, self.stages = split, stages
        self._seen: dict[Incarnation, Seen] = {}
        self._distrusted: dict[Incarnation, float] = {}  # until when
        self._numerics: dict[int, str] = {}  # of the worker that served last, by stage

    def observe(self, heartbeat: StageHeartbeat, now: float) -> None:
        """A worker spoke."""
        self._seen[Incarnation(heartbeat.incarnation)] = Seen(heartbeat, now)

    def bury(self, incarnation: Incarnation, now: float) -> None:
        """A worker did not answer: forget it until it speaks again, and then rather take another."""
        self._seen.pop(incarnation, None)
        self.distrust(incarnation, now)

    def distrust(self, incarnation: Incarnation, now: float) -> None:
        """A worker says that it cannot compute: for a while rather take another."""
        self._distrusted[incarnation] = now + DISTRUST_SECONDS

    def opened(self, chain: Items[StageHeartbeat]) -> None:
        """From now on this chain serves: whoever replaces one of its workers had better compute like it."""
        self._numerics = {worker.stage: worker.numerics for worker in chain}

    def alive(self, now: float) -> list[StageHeartbeat]:
        """Workers heard lately, whatever they serve."""
        return [seen.heartbeat for seen in self._seen.values() if now - seen.at < SUSPECT_SECONDS]

    def chain(self, now: float) -> list[StageHeartbeat] | str:
        """One ready worker per stage, the best of those that fit each other; or what is missing, in words.

        Best is who answers, need not give way, computes like who served last, is no standby; then who served last, then
        the newest.
        """
        places: list[list[StageHeartbeat]] = []
        for index in range(self.stages):
            here = [h for h in self.alive(now) if h.stage == index]
            fit = sorted((h for h in here if not _unfit(h, self.split)), key=lambda h: self._rank(h, now))
            if not fit:
                reasons = sorted({_unfit(h, self.split) for h in here})
                return f"stage {index} of {self.stages}" + (f" ({'; '.join(reasons)})" if reasons else "")
            places.append(fit)
        for one in joined(*places):
            alike = [[h for h in fit if not _mixture([one, h])] for fit in places]
            if all(alike) and not _mixture(found := [fit[0] for fit in alike]):
                return found
        return _mixture([fit[0] for fit in places])

    def _rank(self, worker: StageHeartbeat, now: float) -> tuple[bool, bool, bool, bool, int, int]:
        distrusted = now < self._distrusted.get(Incarnation(worker.incarnation), now)
        otherwise = worker.numerics != self._numerics.get(worker.stage, worker.numerics)
        return distrusted, bool(worker.yields), otherwise, worker.standby, -worker.epoch, -worker.incarnation

    def concern(self, chain: Items[StageHeartbeat], now: float) -> Concern | None:
        """The first worker of a chain that falls silent or wants to leave and has a successor; None: go on."""
        better = self.chain(now)
        if isinstance(better, str):
            return None
        for here, other in zip(chain, better, strict=True):
            if here.incarnation != other.incarnation and (found := self._complaint(here, now)):
                return Concern(f"stage {here.stage} on {here.host} {found[0]}, {other.host} takes over", found[1])
        return None

    def _complaint(self, worker: StageHeartbeat, now: float) -> tuple[str, bool] | None:
        """(what is wrong with a worker, whether it is urgent)."""
        seen = self._seen.get(Incarnation(worker.incarnation))
        if seen is None or now - seen.at >= SUSPECT_SECONDS:
            return "is silent", True
        if seen.heartbeat.state == "draining":
            return "is stopping", False
        return (f"gives way ({seen.heartbeat.yields})", False) if seen.heartbeat.yields else None


def _mixture(chain: Items[StageHeartbeat]) -> str:
    """What workers of one pipeline must have in common and these have not, or "".

    Answers would depend on where the model is cut, and change when a worker is replaced by one that runs otherwise.
    """
    for what, of in _NUMERICS.items():
        if len({said for h in chain if (said := of(h))}) > 1:
            return f"stages of one {what}: " + ", ".join(
                f"stage {h.stage} runs {of(h) or 'an unknown one'}" for h in chain
            )
    return ""


def _unfit(heartbeat: StageHeartbeat, split: str) -> str:
    """Why a worker cannot serve, or ""."""
    if heartbeat.protocol != PROTOCOL_VERSION:
        return f"{heartbeat.host} speaks protocol {heartbeat.protocol}, not {PROTOCOL_VERSION}"
    if heartbeat.split != split:
        return f"{heartbeat.host} serves another split, {heartbeat.split[:12]}"
    if heartbeat.state not in ("ready", "serving"):
        return f"{heartbeat.host} is {heartbeat.state}"
    return ""


def smallest_pool(chain: Items[StageHeartbeat]) -> tuple[int, int]:
    """(blocks, block size) of the chain: one logical block size, as many tokens as the smallest stage holds.

    Stages without blocks do not count. Raises ValueError when block sizes differ.
    """
    paged = [h for h in chain if h.block_size]
    sizes = {h.block_size for h in paged}
    if len(sizes) > 1:
        raise ValueError(f"stages disagree on the block size: {sorted(sizes)}")
    return (min(h.blocks for h in paged), sizes.pop()) if paged else (0, 0)
