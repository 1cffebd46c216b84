"""`monitor-run`: one target for Prometheus, whatever runs in a deployment."""

import asyncio
from typing import Annotated, Final

import typer

from engine.monitoring.endpoint import MetricsEndpoint
from engine.monitoring.metrics import Sample, connection_samples
from engine.monitoring.watch import Watch
from engine.options import DEFAULT_NATS, App, Deployment, Log, LogForm, Models, Nats
from engine.service import announce, configure_logging, run_process, run_until, serve
from engine.transport.base import Transport
from engine.transport.nats import connect

GRACE_SECONDS: Final = 2.0
app = App(rich_markup_mode=None)


@app.command()
def run(
    nats: Nats = DEFAULT_NATS,
    deployment: Deployment = "default",
    model: Models = None,
    metrics: Annotated[str, typer.Option(help="Where Prometheus scrapes: PORT, or HOST:PORT for others.")] = "9400",
    log: Log = LogForm.text,
) -> None:
    """Serve the metrics of every stage, decoder and queue of a deployment at one place, from their heartbeats."""
    run_process(lambda: serve_monitor(nats, deployment, tuple(model or ()), metrics, json_logs=log is LogForm.json))


async def serve_monitor(nats: str, deployment: str, named: tuple[str, ...], metrics: str, *, json_logs: bool) -> None:
    """Connect, listen, serve. Raises UsageError, BrokerError."""
    configure_logging(json=json_logs)
    async with connect(nats, name="monitor") as transport:
        monitor = Monitor(transport, Watch(transport, deployment, named))
        endpoint = MetricsEndpoint(metrics, monitor.samples, announce=announce)
        await serve(monitor, endpoint, grace=GRACE_SECONDS)


class Monitor:
    """Hears everybody until told to stop."""

    def __init__(self, transport: Transport, watch: Watch) -> None:
        self._transport, self._watch = transport, watch

    async def samples(self) -> list[Sample]:
        """Everything that is known now; nothing of the others while the broker is away."""
        if not self._transport.connected:
            return connection_samples(connected=False)
        return [*connection_samples(connected=True), *await self._watch.samples()]

    async def run(self, stop: asyncio.Event) -> None:
        """Listen until `stop`."""
        await run_until(stop, self._watch.listen())


if __name__ == "__main__":
    app()
