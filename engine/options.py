"""Options that several commands share, so that they mean and say the same everywhere."""

from enum import StrEnum
from typing import Annotated, Final

import typer

DEFAULT_NATS: Final = "nats://127.0.0.1:4222"

Nats = Annotated[str, typer.Option(envvar="NATS_URL", help="Broker.")]
Deployment = Annotated[str, typer.Option(help="Separates installations that share a broker.")]
Model = Annotated[str, typer.Option(help="Slug; found by itself when only one is served.")]
Device = Annotated[str, typer.Option(help="OpenVINO device.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads that compute; 0: one per core in use.")]
Cores = Annotated[str, typer.Option(help="Stay on these cores, e.g. 0,1 or 0-3.")]
Metrics = Annotated[
    str, typer.Option(help="Serve Prometheus metrics at this PORT, or HOST:PORT for other machines; off without.")
]


class LogForm(StrEnum):
    """Choices of --log."""

    text = "text"
    json = "json"


Log = Annotated[LogForm, typer.Option(help="Log lines for people, or one JSON object each.")]
