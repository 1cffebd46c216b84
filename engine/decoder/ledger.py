"""What became of requests and how long they took, since the start: for metrics, and one line in the log for each."""

import logging
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import Final

from engine.contract.figures import Answers, OpenRequest
from engine.contract.prompt import FinalEvent
from engine.decoder.core import Progress
from engine.decoder.sequence import Sequence
from engine.monitoring.histogram import Buckets

TOKEN_BOUNDS: Final = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)  # seconds
FIRST_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
REQUEST_BOUNDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
SHOWN: Final = 16  # open requests in a heartbeat
ID_SHOWN: Final = 8  # characters: who reads heartbeats cannot stop a request, or listen to its answer
log = logging.getLogger("shardline.decoder")


class Ledger:
    """Counts as it goes; told of each step's progress and of each final event."""

    def __init__(self) -> None:
        self._outcomes, self._errors = Counter[str](), Counter[str]()
        self._prompt_tokens = 0
        self._queued, self._first = Buckets(FIRST_BOUNDS), Buckets(FIRST_BOUNDS)
        self._token, self._request = Buckets(TOKEN_BOUNDS), Buckets(REQUEST_BOUNDS)

    def progressed(self, progress: Iterable[Progress], now: float) -> None:
        """Tokens came. Those of one row came together: each counts as an even share of the wait for them."""
        for item in progress:
            sequence, count = item.sequence, len(item.delta.ids)
            if not count:
                continue
            before, sequence.latest_token = sequence.latest_token, now
            if before is not None:
                self._token.observe((now - before) / count, count)
            elif count == len(sequence.answer.ids):  # else another decoder began this answer
                self._first.observe(now - sequence.arrived)

    def ended(self, final: FinalEvent) -> None:
        """A request has its final event."""
        self._outcomes[final.finish_reason] += 1
        self._prompt_tokens += final.usage.prompt_tokens
        if final.error is not None:
            self._errors[final.error["code"]] += 1
            return
        self._queued.observe(final.timings.queued / 1e3)
        if final.finish_reason != "cancelled":
            self._request.observe(final.timings.total / 1e3)
        log.info(
            "request %s: %s after %d tokens%s, first token %.0f ms, all %.0f ms",
            final.request,
            final.finish_reason,
            final.usage.completion_tokens,
            ", not all computed alike" if final.mixed else "",
            final.timings.first_token,
            final.timings.total,
            extra={"request": final.request},
        )

    def answers(self) -> Answers:
        """All of it, for the heartbeat."""
        return Answers(
            outcomes=dict(self._outcomes),
            errors=dict(self._errors),
            prompt_tokens=self._prompt_tokens,
            queued_seconds=self._queued.histogram(),
            first_token_seconds=self._first.histogram(),
            token_seconds=self._token.histogram(),
            request_seconds=self._request.histogram(),
        )


def open_requests(sequences: Items[Sequence], now: float) -> tuple[OpenRequest, ...]:
    """The oldest of these."""
    oldest = sorted(sequences, key=lambda sequence: sequence.arrived)[:SHOWN]
    return tuple(
        OpenRequest(
            id=sequence.id[:ID_SHOWN],
            state="waiting" if sequence.slot < 0 else "answer" if sequence.answering else "prompt",
            tokens=len(sequence.answer.ids),
            prompt_tokens=sequence.prompt_length,
            seconds=round(now - sequence.arrived, 1),
        )
        for sequence in oldest
    )
