"""Depths as a table for people."""

from rich.console import Group, RenderableType
from rich.table import Table

from engine.contract.control import PrefixCache, Scheduling, Speculation, StageHeartbeat
from engine.monitoring.depth import Depths


def render(depths: Depths) -> RenderableType:
    """Stages, decoder and prompts as one thing to print."""
    return Group(_stages(depths), *_lines(depths))


def _stages(depths: Depths) -> Table:
    table = Table("stage", "worker", "state", "epoch", "waiting", "oldest ms", "busy", "step p50", "p95", box=None)
    for index, worker in enumerate(depths.stages):
        if worker is None:
            table.add_row(str(index), "-", "[red]missing[/red]", *["-"] * 6)
        else:
            table.add_row(str(index), *_cells(worker))
    for spare in depths.spares:
        table.add_row(f"({spare.stage})", *_cells(spare))
    return table


def _cells(worker: StageHeartbeat) -> list[str]:
    return [
        f"{worker.host}:{worker.pid}",
        _state(worker),
        str(worker.epoch),
        str(worker.waiting),
        f"{worker.oldest_ms:.0f}",
        f"{worker.busy_share:.0%}",
        f"{worker.step_ms_p50:.1f} ms",
        f"{worker.step_ms_p95:.1f} ms",
    ]


def _state(worker: StageHeartbeat) -> str:
    state = "standby" if worker.standby and worker.state == "ready" else worker.state
    return f"{state}, {worker.yields}" if worker.yields else state


def _drafts(figures: Speculation) -> str:
    if not figures.checked:
        return "drafts   none so far"
    return (
        f"drafts   {figures.accepted / figures.checked:.0%} of {figures.checked} accepted, "
        f"{figures.window:.1f} a window for {figures.gain:.2f} times the speed (expected): a step costs "
        f"{figures.step_ms:.0f} ms and {figures.step_token_ms:.1f} a token, a draft {figures.draft_token_ms:.1f}"
    )


def _reuse(figures: PrefixCache) -> str:
    if not figures.hits:
        return "prefixes none reused so far"
    kept = f"{figures.cached_slots} slots" if figures.cached_slots else f"{figures.cached_blocks} blocks"
    return (
        f"prefixes {figures.hits / figures.lookups:.0%} of {figures.lookups} prompts began like an earlier one, "
        f"{figures.saved_tokens} tokens not computed again, {kept} kept"
    )


def _steps(figures: Scheduling) -> str:
    beside = f", {figures.budget_ms:.0f} with prompts beside them" if figures.budget_ms else ""
    return (
        f"steps    up to {figures.depth} in flight: a loop takes {figures.loop_ms:.0f} ms, "
        f"the slowest stage {figures.step_ms:.0f} of it{beside} (expected)"
    )


def _lines(depths: Depths) -> list[str]:
    lines: list[str] = []
    decoder = depths.decoder
    if decoder is None:
        lines.append("decoder  none is heard: start decoder-run")
    else:
        state = f"waiting for {decoder.waits_for}" if decoder.waits_for else decoder.state
        lines.append(
            f"decoder  {state}, {decoder.running} running, {decoder.waiting} waiting, "
            f"{decoder.free_blocks} of {decoder.blocks} blocks free, "
            f"{decoder.tokens_per_second:.1f} tokens/s, {decoder.replays} replays"
        )
        lines.append(_steps(decoder.scheduling))
        lines.append(_drafts(decoder.speculation))
        lines.append(_reuse(decoder.prefix_cache))
    prompts = depths.prompts
    if prompts is None:
        lines.append("prompts  the broker has no queue for them")
    else:
        lines.append(
            f"prompts  {prompts.pending} pending, {prompts.working} being worked on, "
            f"{prompts.redelivered} redelivered, {prompts.dead} dead"
        )
    return lines
