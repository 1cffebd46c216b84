"""Options that several commands share, so that they mean and say the same everywhere."""

import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.models import CommandFunctionType

from engine.transport.address import BrokerUrl

DEFAULT_NATS: Final = "nats://127.0.0.1:4222"

Nats = Annotated[str, typer.Option(envvar="NATS_URL", help="Broker; several of a cluster with commas between.")]
Deployment = Annotated[str, typer.Option(help="Separates installations that share a broker.")]
Model = Annotated[str, typer.Option(help="Slug; found by itself when only one is served.")]
Models = Annotated[list[str] | None, typer.Option(help="Known before it is heard; repeat it.")]
Pipeline = Annotated[str, typer.Option(help="Which of several pipelines that share the queue of one model.")]
Pull = Annotated[bool, typer.Option("--pull", help="First fetch what is needed from the broker (shard-export push).")]
PullModel = Annotated[str, typer.Option("--model", help="With --pull: slug; found by itself when there is only one.")]
LimitRate = Annotated[str, typer.Option(help="Fetch or send at most so many bytes per second, e.g. 20MB; 0: no limit.")]
Device = Annotated[str, typer.Option(help="OpenVINO device.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads that compute; 0: one per core in use.")]
Cores = Annotated[str, typer.Option(help="Stay on these cores, e.g. 0,1 or 0-3.")]
Metrics = Annotated[
    str, typer.Option(help="Serve Prometheus metrics at this PORT, or HOST:PORT for other machines; off without.")
]
Traces = Annotated[
    str,
    typer.Option(envvar="OTEL_EXPORTER_OTLP_ENDPOINT", help="Send OpenTelemetry spans to this collector (OTLP, HTTP)."),
]


class LogForm(StrEnum):
    """Choices of --log."""

    text = "text"
    json = "json"


Log = Annotated[LogForm, typer.Option(help="Log lines for people, or one JSON object each.")]


Credentials = Annotated[
    Path | None, typer.Option(envvar="SHARDLINE_CREDENTIALS", help="Our key, a file that broker-config wrote.")
]
TlsCa = Annotated[
    Path | None, typer.Option(envvar="SHARDLINE_TLS_CA", help="The broker's authority (ca.pem); then only over TLS.")
]


class App(typer.Typer):
    """Commands of ours. One with `nats` gets `--credentials` and `--tls-ca` besides: its `nats` is a BrokerUrl."""

    def command(self, *args: Any, **settings: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """As typer's."""
        register = super().command(*args, **settings)

        def decorate(function: CommandFunctionType) -> CommandFunctionType:
            register(with_broker(function) if "nats" in inspect.signature(function).parameters else function)
            return function

        return decorate


def with_broker(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same command with the options that belong to `--nats`."""

    @functools.wraps(function)
    def command(*, credentials: Path | None = None, tls_ca: Path | None = None, **options: Any) -> Any:
        options["nats"] = BrokerUrl(options["nats"], credentials=credentials, tls_ca=tls_ca)
        return function(**options)

    signature, more = inspect.signature(function), {"credentials": Credentials, "tls_ca": TlsCa}
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
             for name, kind in more.items()]  # fmt: skip
    setattr(command, "__signature__", signature.replace(parameters=[*signature.parameters.values(), *added]))  # noqa: B010
    command.__annotations__ = {**function.__annotations__, **more}
    return command
