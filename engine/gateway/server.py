"""The gateway process: one connection to the broker, one listening socket."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager

import uvicorn

from engine.contract.errors import UsageError
from engine.contract.traces import Tracer
from engine.gateway.app import Gateway, make_app
from engine.gateway.calls import Calls
from engine.gateway.config import GatewayConfig
from engine.gateway.counting import Counting, samples
from engine.gateway.keys import Keys
from engine.gateway.live import Live
from engine.gateway.models import Models
from engine.monitoring.metrics import Sample
from engine.transport.base import Transport


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket, taken before anything else is done. Raises UsageError when it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
        if hasattr(socket, "SO_REUSEPORT"):  # where it is missing (Windows), SO_REUSEADDR means something else
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port") from error
    return opened


def is_local(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Server(uvicorn.Server):
    """Signals are handled by `engine.service.serve`, for every process alike."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave them alone."""
        yield


class GatewayService:
    """Serves HTTP until told to stop; open answers are finished then."""

    def __init__(
        self,
        transport: Transport,
        opened: socket.socket,
        config: GatewayConfig,
        *,
        announce: Callable[[str], None],
        tracer: Tracer | None = None,
    ) -> None:
        self._opened, self._config, self._announce = opened, config, announce
        keys = Keys(config.api_keys)
        self._models = Models(transport, config.deployment, config.models)
        self._calls = calls = Calls(config.max_open, config.patience)
        self._live = Live(self._models, calls, lambda: transport.connected)
        self._gateway = Gateway(
            transport, self._models, calls, keys, self._live, max_body=config.max_body, tracer=tracer
        )
        self._counting = Counting(make_app(self._gateway))
        self._server = _Server(
            uvicorn.Config(
                self._counting,
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=int(config.grace),
            )
        )

    async def samples(self) -> list[Sample]:
        """Its figures for Prometheus."""
        return samples(
            self._counting, self._config.deployment, len(self._calls.open), self._live.pages, self._calls.asked_again
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(self._models.listen())
            await self._models.first()
            sampling = tasks.create_task(self._live.run())
            serving = tasks.create_task(self._server.serve([self._opened]))
            while not self._server.started and not serving.done():  # noqa: ASYNC110  nothing signals that it listens
                await asyncio.sleep(0)
            host, port = self._opened.getsockname()[:2]
            self._announce(f"ready gateway at http://{f'[{host}]' if ':' in host else host}:{port}")
            stopping = tasks.create_task(stop.wait())
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            sampling.cancel()  # ends the pages' streams
            self._server.should_exit = True
            await serving
            for task in (listening, stopping):
                task.cancel()
