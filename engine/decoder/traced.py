"""Spans of one request, and of the steps that it was part of. Off, none of this is made."""

from collections.abc import Iterable
from itertools import islice

from engine.contract.ids import StepNumber
from engine.contract.prompt import FinalEvent
from engine.contract.traces import MAX_TRACED, Span, Tracer
from engine.decoder.batching import RowPlan
from engine.decoder.sequence import Sequence


class RequestTrace:
    """A request from its arrival on, and its three parts: queued, prompt, answer. They leave nothing out."""

    def __init__(self, tracer: Tracer, request: str, parent: str, arrived: float) -> None:
        self._tracer, self._arrived = tracer, arrived
        self._span = tracer.start("request", parent, arrived, **{"shardline.request": request})

    @property
    def context(self) -> str:
        """For its steps; "" when nobody will look at them."""
        return self._span.context if self._span.recording else ""

    def end(self, choices: Iterable[Sequence], final: FinalEvent | None, now: float) -> None:
        """It is over; without a final event somebody else goes on with it."""
        held = list(choices)
        admitted = min((s.admitted for s in held if s.admitted is not None), default=now)
        first = min((s.first_token for s in held if s.first_token is not None), default=now)
        for name, begin, end in (
            ("queued", self._arrived, admitted),
            ("prompt", admitted, first),
            ("answer", first, now),
        ):
            if end > begin:
                self._tracer.start(name, self._span.context, begin).end(end)
        reason = final.finish_reason if final else "handed on"
        usage = final.usage if final else None
        counted = {"prompt": usage.prompt_tokens, "completion": usage.completion_tokens} if usage else {}
        tokens = {f"shardline.tokens.{name}": count for name, count in counted.items()}
        self._span.end(now, **{"shardline.finish_reason": reason}, **tokens)


class StepTraces:
    """Steps under way with rows of traced requests: one span in each of their traces."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[StepNumber, list[Span]] = {}

    def sent(self, number: StepNumber, plans: Iterable[RowPlan], at: float) -> list[str]:
        """A step leaves; contexts for the stages."""
        traced = islice(((plan, plan.sequence.trace) for plan in plans if plan.sequence.trace), MAX_TRACED)
        spans = [
            self._tracer.start("step", trace, at, **{"shardline.step": number, "shardline.tokens": plan.length})
            for plan, trace in traced
        ]
        if spans:
            self._open[number] = spans
        return [span.context for span in spans]

    def returned(self, number: StepNumber, at: float) -> None:
        """Its result is here."""
        for span in self._open.pop(number, ()):
            span.end(at)

    def lost(self) -> None:
        """No further results will come."""
        for span in (span for spans in self._open.values() for span in spans):
            span.end(None, **{"shardline.lost": "yes"})
        self._open.clear()
