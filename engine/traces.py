"""Whether a process traces."""

from collections.abc import Generator
from contextlib import contextmanager

from engine.contract.errors import UsageError
from engine.contract.traces import Tracer


@contextmanager
def tracing(url: str, service: str) -> Generator[Tracer | None]:
    """Where spans go that a process called `service` makes; None, and nothing loaded, without a `url`.

    Raises UsageError when the extra is missing.
    """
    if not url:
        yield None
        return
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--traces {url!r} must be the http:// or https:// address of a collector")
    try:
        from engine.monitoring.tracing import sending  # noqa: PLC0415  an extra, and half a second to import
    except ModuleNotFoundError as error:
        raise UsageError(f"--traces needs {error.name}: pip install 'shardline[traces]'") from error
    with sending(url, service) as spans:
        yield spans
