"""`queue-depth`: what waits where."""

import asyncio
import time
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.live import Live

from engine.client.discover import reach
from engine.contract.control import HEARTBEAT_SECONDS
from engine.monitoring.depth import Collector, collect_once
from engine.monitoring.table import render
from engine.options import DEFAULT_NATS, App, Model, Nats
from engine.service import run_process

app = App(add_completion=False, rich_markup_mode=None)


@app.command()
def run(
    nats: Nats = DEFAULT_NATS,
    deployment: Annotated[str, typer.Option(help="As given to the stages and the decoder.")] = "default",
    model: Model = "",
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object (with --watch: one a second).")] = False,
) -> None:
    """Show how many steps, requests and prompts wait, and how busy every stage is."""
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


async def _watch(collector: Collector, *, json: bool) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(collector.listen())
        with Live(auto_refresh=False, transient=False) if not json else _Lines() as live:
            while True:
                await asyncio.sleep(HEARTBEAT_SECONDS)
                depths = await collector.depths(time.monotonic())
                if isinstance(live, Live):
                    live.update(render(depths), refresh=True)
                else:
                    live.show(orjson.dumps(depths.as_dict()).decode())


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
