"""Who drafts next, from which source, and how much: decisions over the running sequences, no I/O."""

from collections import Counter
from collections.abc import Sequence as Items
from typing import Final, Literal

from engine.contract.control import Speculation
from engine.contract.drafts import MAX_DRAFT_TOKENS, Draft, DraftRequest
from engine.contract.sampling import GREEDY
from engine.decoder.batching import StepLimits
from engine.decoder.cost import Average, StepCost
from engine.decoder.referee import Referee
from engine.decoder.sequence import Sequence
from engine.decoder.speculation import Choice
from engine.monitoring.histogram import Buckets

FIRST_TOKENS: Final = 3  # drafts per window before any step was measured
AHEAD_LEAST: Final = 0.15  # chance that everything before it holds, for a window sent ahead of its time


DraftModelAccess = Literal["absent", "busy", "free"]


class DraftPlanner:
    """Keeps what was measured, and asks for drafts."""

    def __init__(self) -> None:
        self.cost = StepCost()
        self.draft_seconds = Average()  # per token of a window, as far as the pipe waited for it
        self.window = Average(0.98)  # drafts per window, for people
        self.gain = Average(0.98)  # expected speed relative to no drafts, for people
        self.accepted = self.checked = 0  # drafts, since start
        self.referee = Referee()
        self.windows = Counter[str]()  # decided since start: by source, or by the reason for none
        self.lengths = Buckets(range(MAX_DRAFT_TOKENS))

    def observe_step(self, tokens: int, seconds: float) -> None:
        """A step's result came so long after the one before, or after it was sent."""
        self.cost.observe(tokens, seconds)

    def observe_drafts(self, tokens: int, seconds: float) -> None:
        """The pipe waited so long for windows of up to `tokens` drafts."""
        if tokens:
            self.draft_seconds.observe(seconds / tokens)

    def count(self, accepted: int, checked: int) -> None:
        """A row came back: so many drafts were compared, so many hold."""
        self.accepted += accepted
        self.checked += checked

    def requests(self, running: Items[Sequence], limits: StepLimits, model: DraftModelAccess) -> list[DraftRequest]:
        """Decide for every sequence whose next window is open; those that need a busy draft model stay open.

        Lookups are taken at once. While the pipeline reads a prompt the draft model reads it too.
        """
        asked: list[DraftRequest] = []
        worth_it = self.referee.drafting(len(running))
        for sequence in running:
            if not sequence.drafts.sources or sequence.drafting != "open":
                continue
            if not sequence.answering:
                if model == "free" and "model" in sequence.drafts.sources:
                    asked.append(_ask(sequence, 0))
            elif sequence.at_rest or self._may_run_ahead(sequence, len(running), limits):
                asked += self._decide(sequence, limits.share(len(running)), limits, model, worth_it=worth_it)
        return asked

    def _may_run_ahead(self, sequence: Sequence, running: int, limits: StepLimits) -> bool:
        if running >= limits.steps_in_flight or not sequence.flying or sequence.sent < sequence.length:
            return False
        rate = sequence.drafts.acceptance(sequence.drafts.source).rate
        return rate ** (len(sequence.tail) + 1) >= AHEAD_LEAST

    def _decide(
        self, sequence: Sequence, rows: int, limits: StepLimits, model: DraftModelAccess, *, worth_it: bool
    ) -> list[DraftRequest]:
        if sequence.extend_by_grammar():
            sequence.drafting = "decided"
            self._decided("grammar", len(sequence.tail))
            return []
        state, room = sequence.drafts, min(sequence.room, MAX_DRAFT_TOKENS)
        best, source, found = Choice(0, 1.0), "", ()
        for name in state.sources if worth_it or state.fixed is not None else ():
            drafts: tuple[int, ...] = ()
            if name == "lookup":
                sequence.index.take(sequence.tokens)
                drafts = sequence.index.propose(sequence.tokens, sequence.tail, room)
                choice = self._choose(sequence, name, rows, limits, len(drafts))
            elif model != "absent":
                choice = self._choose(sequence, name, rows, limits, room)
            else:
                continue
            if choice.tokens and (not best.tokens or choice.gain > best.gain):
                best, source, found = choice, name, drafts[: choice.tokens]
        if source == "model" and model == "busy":
            return []
        self.window.observe(best.tokens)
        self.gain.observe(best.gain)
        none = "fixed_none" if state.fixed is not None else "too_costly" if worth_it else "measured_slower"
        self._decided(source if best.tokens else none, best.tokens)
        state.source = source or state.source
        sequence.drafting = "decided"
        if source == "model":
            return [_ask(sequence, best.tokens)]
        sequence.extend_tail(found)
        return []

    def _decided(self, why: str, tokens: int) -> None:
        self.windows[why] += 1
        self.lengths.observe(tokens)

    def _choose(self, sequence: Sequence, source: str, rows: int, limits: StepLimits, room: int) -> Choice:
        if not self.cost.known and sequence.drafts.fixed is None:
            return Choice(min(FIRST_TOKENS, room), 1.0)
        draft = self.draft_seconds.value if source == "model" else 0.0

        def seconds(drafts: int) -> float:
            return (self.cost.of(rows * max(1 + drafts, limits.min_row_tokens)) + draft * drafts) / rows

        return sequence.drafts.choose(source, seconds, room)

    def figures(self, failures: int) -> Speculation:
        """What is decided and why, for the decoder's heartbeat."""
        step, token = self.cost.line()
        return Speculation(
            checked=self.checked,
            accepted=self.accepted,
            window=round(self.window.value, 2),
            gain=round(self.gain.value, 3),
            measured_gain=round(self.referee.gain(), 3),
            step_ms=round(step * 1e3, 3),
            step_token_ms=round(token * 1e3, 3),
            draft_token_ms=round(self.draft_seconds.value * 1e3, 3),
            failures=failures,
            windows=dict(self.windows),
            window_tokens=self.lengths.histogram(),
        )

    def take(self, sequence: Sequence, request: DraftRequest, draft: Draft) -> None:
        """The draft model's answer for one sequence, which may have moved on since."""
        if draft.state == "impossible":
            sequence.drafts.sources = tuple(name for name in sequence.drafts.sources if name != "model")
        if sequence.drafting != "asked":
            return
        if not request.count:
            read = draft.state == "ready" and not sequence.answering
            sequence.drafting = "decided" if read else "open"
            return
        branch, length = sequence.asked_at
        come = sequence.length - length  # tokens that were accepted since, beyond what was assumed
        fits = sequence.branch == branch and sequence.stream(length, sequence.length) == list(draft.tokens[:come])
        if fits or not draft.tokens:
            sequence.extend_tail(draft.tokens[come:])
            sequence.drafting = "decided"
        else:
            sequence.drafting = "open"


def _ask(sequence: Sequence, count: int) -> DraftRequest:
    sequence.drafting = "asked"
    sequence.asked_at = (sequence.branch, sequence.length)
    how = sequence.sampling if sequence.sampling.temperature else GREEDY
    return DraftRequest(sequence.id, (*sequence.tokens, *sequence.tail), count, how)
