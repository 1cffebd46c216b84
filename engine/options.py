"""Options that several commands share, so that they mean and say the same everywhere."""

from typing import Annotated, Final

import typer

DEFAULT_NATS: Final = "nats://127.0.0.1:4222"

Nats = Annotated[str, typer.Option(envvar="NATS_URL", help="Broker.")]
Deployment = Annotated[str, typer.Option(help="Separates installations that share a broker.")]
Model = Annotated[str, typer.Option(help="Slug; found by itself when only one is served.")]
Pipeline = Annotated[str, typer.Option(help="Which of several pipelines that share the queue of one model.")]
Pull = Annotated[bool, typer.Option("--pull", help="First fetch what is needed from the broker (shard-export push).")]
LimitRate = Annotated[str, typer.Option(help="Fetch or send at most so many bytes per second, e.g. 20MB; 0: no limit.")]
Device = Annotated[str, typer.Option(help="OpenVINO device.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads that compute; 0: one per core in use.")]
Cores = Annotated[str, typer.Option(help="Stay on these cores, e.g. 0,1 or 0-3.")]
JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Log lines as JSON.")]
