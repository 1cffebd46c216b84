"""`gateway-run`: OpenAI's API and the live page."""

from pathlib import Path
from typing import Annotated

import typer

from engine.contract.errors import UsageError
from engine.gateway.config import GatewayConfig
from engine.gateway.server import GatewayService, is_local, open_socket
from engine.monitoring.endpoint import MetricsEndpoint
from engine.options import DEFAULT_NATS, App, Deployment, Log, LogForm, Metrics, Models, Nats, Traces
from engine.service import announce, configure_logging, run_process, serve
from engine.traces import tracing
from engine.transport.nats import connect

app = App(rich_markup_mode=None)


@app.command()
def run(
    nats: Nats = DEFAULT_NATS,
    deployment: Deployment = "default",
    model: Models = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    api_keys: Annotated[Path | None, typer.Option(help="File of keys (shardline api-key makes them).")] = None,
    no_keys: Annotated[bool, typer.Option("--no-keys", help="Let everybody ask who reaches --host.")] = False,
    max_open: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 256,
    max_body: Annotated[int, typer.Option(min=1024, help="Bytes of a request.")] = 1 << 20,
    patience: Annotated[float, typer.Option(min=0, help="Seconds an answer waits for a lost stage or decoder.")] = 60.0,
    grace: Annotated[float, typer.Option(min=1, help="Seconds to finish answers after SIGTERM.")] = 30.0,
    log: Log = LogForm.text,
    metrics: Metrics = "",
    traces: Traces = "",
) -> None:
    """Serve OpenAI's API and a live page for everything that runs in a deployment. SIGTERM drains."""
    config = GatewayConfig(
        nats=nats,
        deployment=deployment,
        models=tuple(model or ()),
        host=host,
        port=port,
        api_keys=api_keys,
        max_open=max_open,
        max_body=max_body,
        patience=patience,
        grace=grace,
        json_logs=log is LogForm.json,
    )
    run_process(lambda: serve_gateway(config, open_to_all=no_keys, metrics=metrics, traces=traces))


async def serve_gateway(config: GatewayConfig, *, open_to_all: bool, metrics: str = "", traces: str = "") -> None:
    """Listen, connect, serve. Raises UsageError, BrokerError."""
    configure_logging(json=config.json_logs)
    if not (config.api_keys or open_to_all or is_local(config.host)):
        raise UsageError(f"others can reach {config.host}: give --api-keys FILE, or --no-keys if everybody may ask")
    with open_socket(config.host, config.port) as opened, tracing(traces, "gateway") as tracer:
        async with connect(config.nats, name="gateway") as transport:
            service = GatewayService(transport, opened, config, announce=announce, tracer=tracer)
            endpoint = [MetricsEndpoint(metrics, service.samples, announce=announce)] if metrics else []
            await serve(service, *endpoint, grace=config.grace + 1.0)


if __name__ == "__main__":
    app()
