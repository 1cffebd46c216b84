"""`shardline top`: a pipeline at work, on one screen that keeps changing."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from engine.contract.control import DecoderHeartbeat
from engine.contract.figures import Histogram, OpenRequest
from engine.monitoring.depth import Depths
from engine.monitoring.health import bubble_shares, outage
from engine.monitoring.quantile import quantile, since

KEPT: Final = 60  # looks, one a second
BUBBLE_LOOKS: Final = 10  # over which bubbles are averaged
BARS: Final = " ▁▂▃▄▅▆▇█"


class Top:
    """The last minute of one model, and what to show of it."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._looks: deque[Depths] = deque(maxlen=KEPT)

    def look(self, depths: Depths) -> None:
        """One more second has passed."""
        self._looks.append(depths)

    def view(self, clock: str | None = None) -> RenderableType:
        """The screen; `clock` in place of the present time."""
        if not self._looks:
            return Text(f"{self._title}  listening …")
        now = self._looks[-1]
        reason = outage(now)
        state = Text(f"not serving: {reason}", "bold red") if reason else Text("serving", "bold green")
        head = Text.assemble((self._title, "bold"), "  ", state, f"  {clock or time.strftime('%H:%M:%S')}")
        parts: list[RenderableType] = [head, Text(), self._stages(now), Text()]
        if now.decoder is not None:
            parts += [self._figures(now, now.decoder), Text(), _requests(now.decoder)]
        return Group(*parts, Text("Ctrl-C ends", "dim"))

    def _stages(self, now: Depths) -> Table:
        table = Table(
            "stage", "worker", "state", "busy", "", "bubble", "waiting", "oldest", "step p50", "p95", box=None
        )
        bubbles = bubble_shares(self._looks[max(len(self._looks) - BUBBLE_LOOKS, 0)], now)
        for index, worker in enumerate(now.stages):
            if worker is None:
                table.add_row(str(index), "-", Text("missing", "bold red"), *["-"] * 7)
                continue
            bubble = bubbles[index] if index < len(bubbles) else None
            table.add_row(
                str(index),
                f"{worker.host}:{worker.pid}",
                worker.state,
                f"{worker.busy_share:.0%}",
                Text(bar(worker.busy_share, 10), "green"),
                "-" if bubble is None else f"{bubble:.0%}",
                str(worker.waiting),
                f"{worker.oldest_ms:.0f} ms",
                f"{worker.step_ms_p50:.1f} ms",
                f"{worker.step_ms_p95:.1f} ms",
            )
        for spare in now.spares:
            where = f"{spare.host}:{spare.pid}"
            state = "standby" if spare.standby else spare.state
            table.add_row(f"({spare.stage})", where, f"{state}, {spare.yields}" if spare.yields else state, *["-"] * 7)
        return table

    def _figures(self, now: Depths, decoder: DecoderHeartbeat) -> Table:
        rates = [look.decoder.tokens_per_second if look.decoder else 0.0 for look in self._looks]
        table = Table.grid(padding=(0, 2))
        table.add_row("tokens/s", f"{decoder.tokens_per_second:.1f}", Text(spark(rates), "cyan"))
        first = self._lately(lambda d: d.answers.first_token_seconds)
        between = self._lately(lambda d: d.answers.token_seconds)
        table.add_row("first token", "", first)
        table.add_row("between tokens", "", between)
        queue = now.prompts
        kept = f", {queue.pending} queued, oldest {queue.oldest:.0f} s, {queue.dead} dead" if queue else ""
        table.add_row("requests", f"{decoder.running} running", f"{decoder.waiting} waiting{kept}")
        drafts = decoder.speculation
        held = f"{drafts.accepted / drafts.checked:.0%}" if drafts.checked else "-"
        gain = f", measured {drafts.measured_gain:.2f} times the speed" if drafts.measured_gain else ""
        table.add_row("drafts", f"{held} accepted", f"{drafts.window:.1f} a window{gain}")
        used = decoder.blocks - decoder.free_blocks
        saved = f"{decoder.prefix_cache.saved_tokens} prompt tokens found computed"
        table.add_row("cache", f"{used} of {decoder.blocks} blocks", saved)
        faults = f"{decoder.preemptions} preemptions, {sum(decoder.answers.errors.values())} failed or refused"
        table.add_row("epoch", f"{decoder.epoch}", f"{decoder.replays} replays, {faults}")
        return table

    def _lately(self, of: Callable[[DecoderHeartbeat], Histogram]) -> str:
        """Median and 95th percentile over the looks of this decoder."""
        decoders = [look.decoder for look in self._looks if look.decoder]
        same = [decoder for decoder in decoders if decoder.decoder == decoders[-1].decoder]
        found = since(of(same[0]), of(same[-1])) if len(same) > 1 else of(same[-1])
        half, most = quantile(found, 0.5), quantile(found, 0.95)
        return "-" if half is None or most is None else f"p50 {duration(half)}, p95 {duration(most)}"


def _requests(decoder: DecoderHeartbeat) -> RenderableType:
    """The oldest open requests."""
    if not decoder.open_requests:
        return Text("no open requests", "dim")
    table = Table("request", "state", "prompt", "answer", "since", "tokens/s", box=None)
    for one in decoder.open_requests:
        table.add_row(one.id, one.state, str(one.prompt_tokens), str(one.tokens), f"{one.seconds:.1f} s", _speed(one))
    left = decoder.running + decoder.waiting - len(decoder.open_requests)
    return Group(table, Text(f"and {left} more", "dim")) if left > 0 else table


def _speed(request: OpenRequest) -> str:
    return f"{request.tokens / request.seconds:.1f}" if request.tokens and request.seconds else "-"


def spark(values: Sequence[float]) -> str:
    """A curve in one line, the largest value at full height."""
    most = max(values, default=0.0)
    return "".join(BARS[round(value / most * 8)] if most else BARS[0] for value in values)


def bar(share: float, width: int) -> str:
    """A share of `width` characters."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    part = " ▏▎▍▌▋▊▉"[eighths % 8]
    return ("█" * (eighths // 8) + part).ljust(width)[:width]


def duration(seconds: float) -> str:
    """Milliseconds below a second."""
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
