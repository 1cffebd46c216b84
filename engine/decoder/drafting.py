"""Who drafts next, from which source, and how much: decisions over the running sequences, no I/O."""

from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Final, Literal

from engine.contract.control import Speculation
from engine.contract.drafts import MAX_DRAFT_TOKENS, Draft, DraftRequest
from engine.contract.sampling import GREEDY
from engine.decoder.average import Average
from engine.decoder.batching import StepLimits
from engine.decoder.pipeclock import PipeTimes
from engine.decoder.referee import LOOKUP_WAYS, MODEL_WAYS, Referee
from engine.decoder.sequence import Sequence
from engine.decoder.speculation import NONE, Choice, WindowCost, Windows
from engine.decoder.steptime import Work
from engine.monitoring.histogram import Buckets

FIRST_TOKENS: Final = 3  # drafts per window before any step was measured
AHEAD_LEAST: Final = 0.15  # chance that everything before it holds, for a window made ahead of its time
HIDDEN: Final = 0.8  # of the time until the next result: a window made meanwhile keeps nobody waiting


DraftModelAccess = Literal["absent", "busy", "free"]


@dataclass(frozen=True, slots=True)
class Conditions:
    """What drafts are made under."""

    limits: StepLimits
    times: PipeTimes
    measured: bool  # times are
    model: DraftModelAccess
    own_core: bool  # the draft model takes no time from any stage


class DraftPlanner:
    """Keeps what was measured, and asks for drafts."""

    def __init__(self) -> None:
        self.draft_seconds = Average()  # per token that the draft model computed, as far as the pipe waited for it
        self._draft_busy = Average()  # per token, whoever waited
        self.usual = Windows()
        self.window = Average(0.98)  # drafts per window, for people
        self.gain = Average(0.98)  # expected speed relative to no drafts, for people
        self.accepted = self.checked = 0  # drafts, since start
        self.referee = Referee()
        self.windows = Counter[str]()  # decided since start: by source, or by the reason for none
        self.lengths = Buckets(range(MAX_DRAFT_TOKENS))

    def observe_drafts(self, requests: Items[DraftRequest], drafts: Items[Draft], seconds: float, idle: float) -> None:
        """The draft model took so long; `idle`: which part of the pipe waited for it, 0 to 1."""
        pairs = zip(requests, drafts, strict=True)
        if tokens := max(min(len(draft.tokens) + 1, request.count) for request, draft in pairs):
            self.draft_seconds.observe(seconds * idle / tokens)
            self._draft_busy.observe(seconds / tokens)

    def count(self, sequence: Sequence, drafted: int, accepted: int, checked: int, brought: int) -> None:
        """A row with so many drafts came back: so many were compared, so many hold, so many tokens came of it."""
        self.accepted += accepted
        self.checked += checked
        state = sequence.drafts
        if state.windows is not None and state.source == "model" and not state.steady:
            state.windows.observe(drafted, brought)
            self.usual.observe(drafted, brought)

    def requests(self, running: Items[Sequence], now: Conditions) -> list[DraftRequest]:
        """Decide for every sequence whose next window is open; those that need a busy draft model stay open.

        Lookups are taken at once. While the pipeline reads a prompt the draft model reads it too, and while a window is
        verified it drafts the one that comes if all of it holds.
        """
        asked: list[DraftRequest] = []
        self.referee.ways = LOOKUP_WAYS if now.model == "absent" else MODEL_WAYS
        way = self.referee.way(len(running))
        for sequence in running:
            worth_it = way != "none" or sequence.drafts.fixed is not None
            sequence.drafts.steady = way != "chance"
            if not sequence.drafts.sources or sequence.drafting != "open":
                continue
            if not sequence.answering:
                if now.model == "free" and "model" in sequence.drafts.sources:
                    asked.append(_ask(sequence, NONE, now.limits))
            elif sequence.at_rest or (len(running) < now.limits.steps_in_flight and _likely(sequence)):
                asked += self._decide(sequence, len(running), now, worth_it=worth_it)
            elif now.own_core and now.model == "free" and worth_it and _likely(sequence):
                asked += self._prepare(sequence, len(running), now)
        return asked

    def _prepare(self, sequence: Sequence, running: int, now: Conditions) -> list[DraftRequest]:
        """A window to be sent once the one before it has come back, if it can be made until then."""
        if sequence.drafts.source != "model":
            return []
        choice, source, _ = self._best(sequence, running, now)
        if source != "model":
            return []
        until = HIDDEN * now.times.slowest.of(
            _work(sequence, now.limits.share(running), len(sequence.tail), now.limits)
        )
        most = int(until / max(self._draft_busy.value, 1e-4)) - 1
        if most < (1 if choice.least else choice.tokens):  # a steady window is made whole
            return []
        return [_ask(sequence, Choice(min(choice.tokens, most), choice.gain, choice.least), now.limits)]

    def _decide(self, sequence: Sequence, running: int, now: Conditions, *, worth_it: bool) -> list[DraftRequest]:
        if sequence.extend_by_grammar():
            sequence.drafting, sequence.drafts.source = "decided", ""
            self._decided("grammar", len(sequence.tail))
            return []
        state = sequence.drafts
        best, source, found = NONE, "", ()
        if worth_it:
            best, source, found = self._best(sequence, running, now)
        if source == "model" and now.model == "busy":
            return []
        drafted = self.usual.drafted if best.least else best.tokens
        self.window.observe(drafted)
        self.gain.observe(best.gain)
        none = "fixed_none" if state.fixed is not None else "too_costly" if worth_it else "measured_slower"
        self._decided(source or none, drafted)
        state.source = source
        sequence.drafting = "decided"
        if source == "model":
            return [_ask(sequence, best, now.limits)]
        sequence.extend_tail(found)
        return []

    def _best(self, sequence: Sequence, running: int, now: Conditions) -> tuple[Choice, str, tuple[int, ...]]:
        """What to draft, from which source; and the drafts, from a source that needs no model."""
        state, room = sequence.drafts, min(sequence.room, MAX_DRAFT_TOKENS)
        best, source, found = NONE, "", ()
        for name in state.sources:
            drafts: tuple[int, ...] = ()
            if name == "lookup":
                sequence.index.take(sequence.tokens)
                drafts = sequence.index.propose(sequence.tokens, sequence.tail, room)
                choice = self._choose(sequence, name, running, now, len(drafts))
            elif now.model != "absent":
                choice = self._choose(sequence, name, running, now, room)
            else:
                continue
            if choice.tokens and (not best.tokens or choice.gain > best.gain):
                best, source, found = choice, name, drafts[: choice.tokens]
        return best, source, found

    def _decided(self, why: str, tokens: float) -> None:
        self.windows[why] += 1
        self.lengths.observe(tokens)

    def _choose(self, sequence: Sequence, source: str, running: int, now: Conditions, room: int) -> Choice:
        if not now.measured and sequence.drafts.fixed is None:
            return Choice(min(FIRST_TOKENS, room), 1.0)
        groups = min(running, now.limits.steps_in_flight)
        rows = now.limits.share(running)

        def step(drafts: float) -> float:
            return now.times.cycle(_work(sequence, rows, drafts, now.limits), groups)

        draft = self.draft_seconds.value if source == "model" else 0.0
        return sequence.drafts.choose(source, WindowCost(step, draft), room, self.usual)

    def figures(self, times: PipeTimes, failures: int) -> Speculation:
        """What is decided and why, for the decoder's heartbeat."""
        slowest = times.slowest
        return Speculation(
            checked=self.checked,
            accepted=self.accepted,
            window=round(self.window.value, 2),
            gain=round(self.gain.value, 3),
            measured_gain=round(self.referee.gain(), 3),
            step_ms=round((slowest.fixed + slowest.row) * 1e3, 3),
            step_token_ms=round(slowest.token * 1e3, 3),
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


def _likely(sequence: Sequence) -> bool:
    """Whether a window behind those under way has a chance."""
    if not sequence.flying or sequence.sent < sequence.length:
        return False
    rate = sequence.drafts.acceptance(sequence.drafts.source).rate
    return rate ** (len(sequence.tail) + 1) >= AHEAD_LEAST


def _ask(sequence: Sequence, choice: Choice, limits: StepLimits) -> DraftRequest:
    sequence.drafting = "asked"
    sequence.asked_at = (sequence.branch, sequence.length)
    ahead = 1 if sequence.flying and choice.tokens else 0  # what the row under way is about to say
    return DraftRequest(
        sequence.id,
        (*sequence.tokens, *sequence.tail),
        min(choice.tokens + ahead, sequence.room),
        sequence.sampling if sequence.sampling.temperature else GREEDY,
        least=choice.least,
        ahead=ahead,
        kept=limits.min_row_tokens - 1,
    )


def _work(sequence: Sequence, rows: int, drafts: float, limits: StepLimits) -> Work:
    """Of a step with so many rows like this sequence's next one."""
    return Work(rows, rows * max(1 + drafts, limits.min_row_tokens), rows * sequence.length)
