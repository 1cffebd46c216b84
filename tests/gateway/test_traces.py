"""One request's spans, from the gateway to the stages: nothing is missing between them."""

import asyncio
import threading
from collections.abc import Sequence

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from engine.contract.errors import UsageError
from engine.monitoring.tracing import Spans
from engine.traces import tracing
from tests.decoder.local_pipeline import next_token, pipeline
from tests.gateway.serving import gateway

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TOKENS = 40
pause = threading.Event()  # that nobody sets


def slow(history: Sequence[int]) -> int:
    """A model that takes a while: what is between the parts should be small beside them."""
    pause.wait(0.01)
    return next_token(history)


def spans_of(flags: str) -> Sequence[ReadableSpan]:
    """What one request to an otherwise idle pipeline of two stages leaves, in a client's trace with these flags."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(1.0))
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def main() -> None:
        async with pipeline(whole=False) as here:
            here.tracer = Spans(provider)
            await here.start(script=slow)
            async with gateway(here) as served, httpx.AsyncClient(base_url=served.url, timeout=30) as client:
                asked = {"model": "model", "prompt": "hello", "max_tokens": TOKENS, "stream": True}
                reply = await client.post(
                    "/v1/completions", json=asked, headers={"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}
                )
                assert reply.status_code == 200

    asyncio.run(main())
    return exporter.get_finished_spans()


def seconds(span: ReadableSpan) -> float:
    assert span.end_time is not None and span.start_time is not None
    return (span.end_time - span.start_time) / 1e9


def of(spans: Sequence[ReadableSpan], *names: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name in names]


def parents(spans: Sequence[ReadableSpan]) -> set[str]:
    return {f"{span.parent.span_id:016x}" for span in spans if span.parent}


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


@pytest.mark.pipelines
def test_the_parts_of_a_request_add_up_to_what_the_client_waited() -> None:
    spans = spans_of("01")
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {TRACE}
    (whole,), (request,) = of(spans, "POST /v1/completions"), of(spans, "request")
    assert parents([whole]) == {PARENT} and parents([request]) == {id_of(whole)}
    parts, steps = of(spans, "queued", "prompt", "answer"), of(spans, "step")
    assert [span.name for span in parts] == ["queued", "prompt", "answer"]
    assert parents(parts) == parents(steps) == {id_of(request)} and len(steps) == TOKENS
    assert sum(map(seconds, parts)) == pytest.approx(seconds(whole), rel=0.05)
    assert seconds(parts[0]) + sum(map(seconds, steps)) == pytest.approx(seconds(whole), rel=0.05)
    first, last = of(spans, "stage 0"), of(spans, "stage 1")
    assert len(first) == len(last) == TOKENS
    assert parents(first) == parents(last) == {id_of(step) for step in steps}
    assert sum(map(seconds, first)) < sum(map(seconds, last)) < sum(map(seconds, steps))


@pytest.mark.pipelines
def test_a_request_whose_client_does_not_trace_it_leaves_no_span() -> None:
    assert spans_of("00") == ()


def test_without_an_address_nothing_is_made_and_a_wrong_one_is_refused() -> None:
    with tracing("", "stage-0") as tracer:
        assert tracer is None
    with pytest.raises(UsageError, match="'localhost:4318' must be the http"), tracing("localhost:4318", "stage-0"):
        pass
