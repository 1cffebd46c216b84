"""`shardline demo`: a real model in shards, several answers at once, live queue depths, a table at the end."""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from engine.client.client import Client
from engine.contract.errors import ShardlineError
from engine.contract.prompt import FinalEvent
from engine.local.model import demo_draft, demo_split
from engine.local.pipeline import local_pipeline
from engine.monitoring.depth import Collector, Depths
from engine.monitoring.table import render
from engine.transport.address import BrokerUrl
from engine.transport.nats import connect
from engine.transport.subjects import Subjects

PROMPTS: Final = (
    "What is the capital of Japan and why is it famous?",
    "Write a short story about a lighthouse keeper.",
    "List five benefits of regular exercise.",
    "Explain how a hash table works.",
)
REFRESH_SECONDS: Final = 0.2
DEPTH_SECONDS: Final = 1.0


@dataclass(slots=True)
class Reply:
    """One answer as it grows."""

    prompt: str
    text: str = ""
    final: FinalEvent | None = None


@dataclass(slots=True)
class Demo:
    """State of one run."""

    replies: list[Reply]
    depths: Depths | None = None
    busy: list[list[float]] = field(default_factory=list[list[float]])  # per sample, per stage

    def view(self) -> RenderableType:
        """What is on the screen while answers grow."""
        panels = [Panel(reply.text or "…", title=reply.prompt, title_align="left") for reply in self.replies]
        return Group(*panels, render(self.depths) if self.depths else "")


async def run_demo(
    prompts: Sequence[str], *, stages: int, max_tokens: int, keep: bool, console: Console, progress: Console
) -> None:
    """Run the demo from nothing. Raises ShardlineError when something cannot be had, or an answer failed."""
    started = time.monotonic()

    def say(line: str) -> None:
        progress.print(f"[dim]{time.monotonic() - started:5.1f} s[/dim]  {line}", highlight=False, soft_wrap=True)

    shards = await demo_split(stages, say)
    draft = await demo_draft(shards, say)
    options = ("--draft", str(draft))
    with tempfile.TemporaryDirectory(prefix="shardline-demo-", ignore_cleanup_errors=True) as home:
        async with (
            local_pipeline(shards, Path(home), say, decoder_options=options, guarded=True) as pipeline,
            connect(pipeline.url_for("gateway"), name="demo") as transport,
        ):
            say(f"publishing {len(prompts)} prompts at once")
            subjects = Subjects("default", pipeline.slug)
            demo = Demo([Reply(prompt) for prompt in prompts])
            client, collector = Client(transport, subjects), Collector(transport, subjects)
            began = time.monotonic()
            await _answer(demo, client, collector, max_tokens, console)
            console.print(summary(demo, time.monotonic() - began))
            if keep:
                await _keep(pipeline.url_for("gateway"), subjects, console)
    say("everything stopped")
    failed = [reply.final.error for reply in demo.replies if reply.final and reply.final.error]
    if failed:
        raise ShardlineError(f"{len(failed)} of {len(prompts)} answers failed: {failed[0]['message']}")


async def _answer(demo: Demo, client: Client, collector: Collector, max_tokens: int, console: Console) -> None:
    async def one(reply: Reply) -> None:
        messages = [{"role": "user", "content": reply.prompt}]
        async for event in client.generate(messages=messages, max_tokens=max_tokens):
            if isinstance(event, FinalEvent):
                reply.final, reply.text = event, event.text
                if not console.is_terminal:
                    console.print(Panel(reply.text, title=reply.prompt, title_align="left"))
            else:
                reply.text += event.text

    live = Live(demo.view(), console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    with live or nullcontext():
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(collector.listen()), tasks.create_task(_sample(demo, collector))]
            if live:
                watching.append(tasks.create_task(_refresh(demo, live)))
            answers = [tasks.create_task(one(reply)) for reply in demo.replies]
            await asyncio.gather(*answers)
            for task in watching:
                task.cancel()
    if live:
        console.print(demo.view())


async def _refresh(demo: Demo, live: Live) -> None:
    while True:
        live.update(demo.view(), refresh=True)
        await asyncio.sleep(REFRESH_SECONDS)


async def _sample(demo: Demo, collector: Collector) -> None:
    while True:
        await asyncio.sleep(DEPTH_SECONDS)
        demo.depths = await collector.depths(time.monotonic())
        demo.busy.append([worker.busy_share if worker else 0.0 for worker in demo.depths.stages])


def summary(demo: Demo, seconds: float) -> RenderableType:
    """The table at the end."""
    table = Table("prompt", "tokens", "tokens/s", "first token", "drafts accepted", "ended by", title="answers")
    total = drafted = accepted = 0
    for reply in demo.replies:
        if reply.final is None:
            continue
        tokens, timings = reply.final.usage.completion_tokens, reply.final.timings
        usage = reply.final.usage
        total, drafted, accepted = total + tokens, drafted + usage.drafted_tokens, accepted + usage.accepted_tokens
        decode = max(timings.total - timings.first_token, 1e-9) / 1e3
        table.add_row(
            reply.prompt,
            str(tokens),
            f"{max(tokens - 1, 0) / decode:.1f}",
            f"{timings.first_token:.0f} ms",
            share(usage.accepted_tokens, usage.drafted_tokens),
            reply.final.finish_reason,
        )
    table.add_section()
    table.add_row("together", str(total), f"{total / seconds:.1f}", "", share(accepted, drafted), f"{seconds:.1f} s")
    rows = [row for row in demo.busy if any(row)]
    shares = [sum(column) / len(rows) for column in zip(*rows, strict=False)] if rows else []
    busy = ", ".join(f"stage {index} {share:.0%}" for index, share in enumerate(shares))
    return Group(table, f"busy: {busy or 'too short to tell'}")


def share(accepted: int, drafted: int) -> str:
    """How many drafts held."""
    return f"{accepted} of {drafted}" if drafted else "none drafted"


async def _keep(url: BrokerUrl, subjects: Subjects, console: Console) -> None:
    console.print(
        f"\nThe pipeline keeps running at {url}. In another terminal:\n"
        f"  export NATS_URL={url} SHARDLINE_CREDENTIALS={url.credentials}\n"
        '  shardline prompt "Who are you?"\n'
        "  queue-depth --watch\n"
        f"Prompts go to {subjects.prompt}. Ctrl-C stops everything.",
        highlight=False,
        soft_wrap=True,
    )
    await asyncio.Event().wait()
