"""Who is there: heartbeats of workers in, the chain of the next epoch out. No I/O, no clock of its own."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Final

from engine.contract.control import PROTOCOL_VERSION, SUSPECT_SECONDS, StageHeartbeat
from engine.contract.ids import Incarnation

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


class Fleet:
    """The workers that could serve this split."""

    def __init__(self, *, split: str, stages: int) -> None:
        self.split, self.stages = split, stages
        self._seen: dict[Incarnation, Seen] = {}

    def observe(self, heartbeat: StageHeartbeat, now: float) -> None:
        """A worker spoke."""
        self._seen[Incarnation(heartbeat.incarnation)] = Seen(heartbeat, now)

    def bury(self, incarnation: Incarnation) -> None:
        """A worker did not answer: forget it until it speaks again."""
        self._seen.pop(incarnation, None)

    def alive(self, now: float) -> list[StageHeartbeat]:
        """Workers heard lately, whatever they serve."""
        return [seen.heartbeat for seen in self._seen.values() if now - seen.at < SUSPECT_SECONDS]

    def chain(self, now: float) -> list[StageHeartbeat] | str:
        """One ready worker per stage, newest first where there are several; or what is missing, in words."""
        found: list[StageHeartbeat] = []
        for index in range(self.stages):
            here = [h for h in self.alive(now) if h.stage == index]
            fit = [h for h in here if not _unfit(h, self.split)]
            if not fit:
                reasons = sorted({_unfit(h, self.split) for h in here})
                return f"stage {index} of {self.stages}" + (f" ({'; '.join(reasons)})" if reasons else "")
            found.append(max(fit, key=lambda h: h.incarnation))
        return _mixture(found) or found


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
