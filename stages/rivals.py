"""What a worker concludes from other workers' heartbeats: is its place taken, does a stranger share the name?"""

from dataclasses import dataclass

from engine.contract.control import PROTOCOL_VERSION, StageHeartbeat, WorkerState
from stages.identity import Identity


@dataclass(frozen=True, slots=True)
class Taken:
    """Somebody else has this stage; we give way."""

    host: str
    pid: int
    state: WorkerState


def rival(mine: Identity, state: WorkerState, other: StageHeartbeat) -> Taken | None:
    """The worker that `other` shows to have our place, if we must give way to it.

    One that takes work has it; of two that are loading the earlier. Who has once been ready never gives way, and to
    one that stands by nobody does.
    """
    if state != "loading" or other.standby or not same_place(mine, other):
        return None
    takes_work = other.state in ("ready", "serving")
    earlier = other.state == "loading" and other.incarnation < mine.incarnation
    return Taken(other.host, other.pid, other.state) if takes_work or earlier else None


def same_place(mine: Identity, other: StageHeartbeat) -> bool:
    """Whether `other` is another worker of our stage."""
    place = (other.pipeline, other.stage, other.split, other.protocol)
    return place == (mine.pipeline, mine.stage, mine.split, PROTOCOL_VERSION) and other.incarnation != mine.incarnation


def misfit(mine: Identity, other: StageHeartbeat) -> str:
    """Why a worker of this deployment and model name cannot share a pipeline with us; "" when it can.

    One of another pipeline must compute alike, since answers move; where it cuts the model is its own affair.
    """
    who = f"stage {other.stage} on {other.host} (pid {other.pid})"
    if other.protocol != PROTOCOL_VERSION:
        return f"{who} speaks protocol {other.protocol}, not {PROTOCOL_VERSION}: install the same shardline everywhere"
    if other.pipeline == mine.pipeline and other.split != mine.split:
        return f"{who} serves another split, {other.split[:12]} instead of {mine.split[:12]}: copy one split everywhere"
    if other.profile != mine.profile:
        return f"{who} runs profile {other.profile}, this one {mine.profile}: start all with the same --profile"
    if other.kv_precision not in ("", mine.kv_precision):
        return (
            f"{who} keeps its KV cache in {other.kv_precision}, this one in {mine.kv_precision}: "
            "start all with the same --kv-precision"
        )
    if other.dynamic_quantization != mine.dynamic_quantization:
        return f"{who} quantizes activations otherwise than this one: start all with the same --profile"
    return ""
