"""OpenTelemetry spans, sent by OTLP over HTTP from a thread of their own. Only with the extra `[traces]`."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace import Tracer as LibraryTracer

PATH: Final = "/v1/traces"
FLUSH_MS: Final = 2000  # at the end: a collector that is away holds nobody up


class Spans:
    """See engine.contract.traces.Tracer."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer: LibraryTracer = provider.get_tracer("shardline")
        self._offset = time.time_ns() - time.monotonic_ns()  # traces want the time of day

    def start(self, name: str, parent: str = "", at: float | None = None, **attributes: str | float) -> "OpenSpan":
        """See Tracer."""
        within = set_span_in_context(NonRecordingSpan(_context_of(parent)) if parent else get_current_span())
        span = self._tracer.start_span(name, within, attributes=attributes, start_time=self.nanoseconds(at))
        return OpenSpan(self, span)

    def nanoseconds(self, at: float | None) -> int:
        """Of the epoch."""
        return self._offset + (time.monotonic_ns() if at is None else int(at * 1e9))


class OpenSpan:
    """See engine.contract.traces.Span."""

    def __init__(self, spans: Spans, span: Span) -> None:
        self._spans, self._span = spans, span
        found = span.get_span_context()
        self.context = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
        self.recording = span.is_recording()

    def end(self, at: float | None = None, **attributes: str | float) -> None:
        """See Span."""
        self._span.set_attributes(attributes)
        self._span.end(self._spans.nanoseconds(at))


def _context_of(parent: str) -> SpanContext:
    _, trace, span, flags = parent.split("-")
    return SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))


@contextmanager
def sending(url: str, service: str) -> Generator[Spans]:
    """Spans of this process to the collector at `url`; which ones, OTEL_TRACES_SAMPLER says (all of them)."""
    provider = TracerProvider(resource=Resource.create({"service.name": f"shardline-{service}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{url.rstrip('/')}{PATH}")))
    try:
        yield Spans(provider)
    finally:
        provider.force_flush(FLUSH_MS)
        provider.shutdown()
