"""`queue-depth`, and what `shardline status` and `shardline top` do: what runs, and what waits where."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any, Final

import orjson
import typer
from rich.console import Console
from rich.live import Live

from engine.client.discover import reach
from engine.contract.control import HEARTBEAT_SECONDS
from engine.contract.errors import NotServingError, UsageError
from engine.monitoring.depth import COLLECT_SECONDS, Collector, Depths, collect_once
from engine.monitoring.health import outage
from engine.monitoring.table import render
from engine.monitoring.top import Top
from engine.monitoring.watch import Watch
from engine.options import DEFAULT_NATS, App, Model, Nats
from engine.service import run_process
from engine.transport.base import Transport
from engine.transport.nats import BROKER_SECONDS, connect

FIRST_LOOK: Final = 0.3 * HEARTBEAT_SECONDS  # after which a screen shows something, if not everything
app = App(rich_markup_mode=None)


@app.command()
def run(
    nats: Nats = DEFAULT_NATS,
    deployment: Annotated[str, typer.Option(help="As given to the stages and the decoder.")] = "default",
    model: Model = "",
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object (with --watch: one a second).")] = False,
) -> None:
    """Show how many steps, requests and prompts wait, and how busy every stage is.

    Exit codes: 0 shown, 1 no broker, 2 wrong usage or no model to show.
    """
    run_process(lambda: show(nats, deployment, model, watch=watch, json=json))


async def show(nats: str, deployment: str, model: str, *, watch: bool, json: bool) -> None:
    """Collect and print, once or for ever."""
    async with reach(nats, deployment, model, name="queue-depth") as (transport, subjects):
        if watch:
            await _watch(Collector(transport, subjects), json=json)
            return
        depths = await collect_once(transport, subjects)
        if json:
            print(orjson.dumps(depths.as_dict()).decode())
        else:
            Console().print(render(depths))


async def show_status(nats: str, deployment: str, model: str, *, json: bool) -> None:
    """Print how every model does, or the one. Raises NotServingError when one would not answer a prompt."""
    async with connect(nats, name="status", wait=BROKER_SECONDS) as transport:
        found = await look(transport, deployment, model)
    outages = {name: outage(depths) for name, depths in found.items()}
    for name, depths in found.items():
        if json:
            print(orjson.dumps(status_of(name, depths)).decode())
        else:
            print(f"{name} in {deployment}: " + (f"not serving, {outages[name]}" if outages[name] else "serving"))
            Console().print(render(depths))
    if not found:
        raise NotServingError(f"nothing is heard in deployment {deployment!r}: start stage-run and decoder-run")
    if bad := [f"{name}: {reason}" for name, reason in outages.items() if reason]:
        raise NotServingError(f"not serving, {'; '.join(bad)}")


def status_of(model: str, depths: Depths) -> dict[str, Any]:
    """One object for scripts."""
    return {"model": model, "serving": not outage(depths), "outage": outage(depths), **depths.as_dict()}


async def look(transport: Transport, deployment: str, model: str) -> dict[str, Depths]:
    """What is heard within one and a half heartbeats, by model; of one model where it is named."""
    watch = Watch(transport, deployment, (model,) if model else ())
    with suppress(TimeoutError):
        async with asyncio.timeout(COLLECT_SECONDS):
            await watch.listen()
    return {name: depths for name, depths in (await watch.depths()).items() if model in ("", name)}


async def show_top(nats: str, deployment: str, model: str, console: Console) -> None:
    """Keep a screen up to date until interrupted. Raises UsageError without a terminal."""
    if not console.is_terminal:
        raise UsageError("top draws on a terminal; for a script: queue-depth --watch --json")
    async with reach(nats, deployment, model, name="top") as (transport, subjects):
        top = Top(f"{subjects.model} in {subjects.deployment}")
        with Live(top.view(), console=console, screen=True, auto_refresh=False) as live:

            async def draw(depths: Depths) -> None:
                top.look(depths)
                live.update(top.view(), refresh=True)

            await _every_second(Collector(transport, subjects), draw)


async def _watch(collector: Collector, *, json: bool) -> None:
    with Live(auto_refresh=False, transient=False) if not json else _Lines() as live:

        async def draw(depths: Depths) -> None:
            if isinstance(live, Live):
                live.update(render(depths), refresh=True)
            else:
                live.show(orjson.dumps(depths.as_dict()).decode())

        await _every_second(collector, draw)


async def _every_second(collector: Collector, draw: Callable[[Depths], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(collector.listen())
        await asyncio.sleep(FIRST_LOOK)
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await draw(await collector.depths(time.monotonic()))


class _Lines:
    """JSON lines in place of a live table."""

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, line: str) -> None:
        """Print one object."""
        print(line, flush=True)


if __name__ == "__main__":
    app()
