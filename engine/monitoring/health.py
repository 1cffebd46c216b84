"""Whether a pipeline serves, and how busy its stages were between two looks."""

from engine.contract.control import StageHeartbeat
from engine.monitoring.depth import Depths


def outage(depths: Depths) -> str:
    """Why nothing can be answered, "" when it can."""
    decoder = depths.decoder
    if decoder is None:
        return "no decoder is heard"
    if not depths.stages:
        return "no stage is heard"
    if missing := [str(index) for index, worker in enumerate(depths.stages) if worker is None]:
        return f"stage {', '.join(missing)} is missing"
    if decoder.waits_for:
        return f"its decoder waits for {decoder.waits_for}"
    return "its decoder is stopping" if decoder.state == "draining" else ""


def bubble_shares(before: Depths, after: Depths) -> list[float | None]:
    """Of each stage: the share of the time with work to do that it did not compute, 0 to 1.

    None where a process was not there at both moments, or there was nothing to do between them. Heartbeats are up to a
    second old: over 20 s that is good to a few per cent.
    """
    was, now = before.decoder, after.decoder
    same = was is not None and now is not None and was.decoder == now.decoder
    active = now.active_seconds - was.active_seconds if same and was and now else 0.0
    pairs = zip(before.stages, after.stages, strict=False)
    return [_bubble(first, last, active) for first, last in pairs]


def _bubble(before: StageHeartbeat | None, after: StageHeartbeat | None, active: float) -> float | None:
    if before is None or after is None or before.incarnation != after.incarnation or active <= 0:
        return None
    return min(max(1 - (after.busy_seconds - before.busy_seconds) / active, 0.0), 1.0)
