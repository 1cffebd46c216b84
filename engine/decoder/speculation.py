"""How many tokens to draft: pure functions of measured acceptance and costs.

A lookup's drafts are all alike: with every one accepted with probability a, independently, a row of K drafts brings
(1 - a^(K+1)) / (1 - a) tokens (Leviathan et al., 2023, eq. 1), and the best K is the one with the most tokens per
second. A draft model says how likely each of its tokens is. One more token brings the chance that it and all drafts
before it hold, and costs what one more token takes in drafting and in the step; so a window goes on while

    chance > seconds of one more token * tokens per second now.

When drafting hardly beats no drafts at all, none are made.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from engine.contract.drafts import MAX_DRAFT_TOKENS
from engine.decoder.average import Average

PRIOR_WEIGHT: Final = 4.0  # drafts or windows: how firmly the first guess is held
FORGET: Final = 0.9  # weight of everything older, per row
Seconds = Callable[[float], float]
MIN_GAIN: Final = 1.03  # below that the noise of the measurements decides, and drafts only cost
PROBE_EVERY: Final = 32  # tokens without a draft after which a short one looks whether things have changed
PROBE_TOKENS: Final = 2
CHANCES: Final = (0.02, 0.9)  # between which the least chance of a draft stays


class Acceptance:
    """How often a source's drafts hold, for one request: a moving average over compared drafts."""

    def __init__(self, prior: float) -> None:
        self._accepted, self._checked = PRIOR_WEIGHT * prior, PRIOR_WEIGHT

    def observe(self, accepted: int, checked: int) -> None:
        """One row: so many drafts were compared, so many of them held."""
        self._accepted = FORGET * self._accepted + accepted
        self._checked = FORGET * self._checked + checked

    @property
    def rate(self) -> float:
        """Probability that the next draft holds, given that those before it do."""
        return self._accepted / self._checked


class Windows:
    """What windows of a draft model were like lately, those that ended before their first token included."""

    def __init__(self, drafted: float = 2.0, brought: float = 2.1) -> None:
        """What to think before the first one."""
        self._drafted = Average.starting(drafted, PRIOR_WEIGHT)
        self._brought = Average.starting(brought, PRIOR_WEIGHT)

    def observe(self, drafted: int, brought: int) -> None:
        """One row with so many drafts brought so many tokens."""
        self._drafted.observe(drafted)
        self._brought.observe(brought)

    def like(self) -> "Windows":
        """A first guess for somebody else."""
        return Windows(self.drafted, self.brought)

    @property
    def drafted(self) -> float:
        """Drafts per row."""
        return self._drafted.value

    @property
    def brought(self) -> float:
        """Tokens per row."""
        return self._brought.value


@dataclass(frozen=True, slots=True)
class WindowCost:
    """What a window takes, in seconds."""

    step: Seconds  # until the sequence is served again, with so many drafts in each row
    draft: float = 0.0  # of each drafted token, as far as the pipe waits for it


@dataclass(frozen=True, slots=True)
class Choice:
    """A number of drafts and what it is expected to bring."""

    tokens: int  # at most
    gain: float  # speed relative to no drafts
    least: float = 0.0  # chance of a draft that still pays


NONE: Final = Choice(0, 1.0)


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Tokens that a verify row with so many drafts brings."""
    if acceptance >= 1.0:
        return drafts + 1.0
    return (1 - acceptance ** (drafts + 1)) / (1 - acceptance)


def choose(acceptance: float, cost: WindowCost, limit: int = MAX_DRAFT_TOKENS, usual: int = 0) -> Choice:
    """The best number of drafts, 0 to `limit`, when all are equally likely; the `usual` one when it is about as good.

    Steps of one size after the other are quicker than steps of changing sizes.
    """

    def speed(drafts: int) -> float:
        return expected_tokens(acceptance, drafts) / max(cost.step(drafts) + cost.draft * drafts, 1e-9)

    best = max(range(limit + 1), key=speed)
    if 0 < usual <= limit and speed(best) < MIN_GAIN * speed(usual):
        best = usual
    gain = speed(best) / speed(0)
    return Choice(best, gain) if gain >= MIN_GAIN else NONE


def choose_chance(windows: Windows, cost: WindowCost, limit: int = MAX_DRAFT_TOKENS) -> Choice:
    """Up to `limit` drafts of a model that knows their chances, and the chance with which one still pays."""
    drafts = windows.drafted
    seconds = cost.step(drafts) + cost.draft * (drafts + 1)  # the one that ends the window is computed too
    speed = windows.brought / max(seconds, 1e-9)
    gain = speed * cost.step(0)
    if gain < MIN_GAIN:
        return NONE
    more = cost.step(drafts + 1) - cost.step(drafts) + cost.draft
    return Choice(limit, gain, min(max(more * speed, CHANCES[0]), CHANCES[1]))


@dataclass(slots=True)
class DraftState:
    """What one sequence knows of its drafts."""

    sources: tuple[str, ...]  # in order of preference, of "lookup" and "model"; empty: never drafts
    fixed: int | None = None  # tokens per window instead of the best number
    steady: bool = False  # windows of the model are of one length, whatever their chances
    length: int = 0  # of the latest steady window
    model: Acceptance = field(default_factory=lambda: Acceptance(0.65))
    lookup: Acceptance = field(default_factory=lambda: Acceptance(0.6))
    windows: Windows | None = None  # of the model; None: no window was decided yet
    source: str = ""  # of the latest drafts; "": none were made, or a grammar left no choice
    undrafted: int = 0  # tokens since a draft was last compared
    checked: int = 0  # drafts that were compared with the target's token
    accepted: int = 0  # of those

    @property
    def adapts(self) -> bool:
        """Whether it drafts as much as pays."""
        return bool(self.sources) and self.fixed is None

    def acceptance(self, source: str) -> Acceptance:
        """Of that source."""
        return self.lookup if source == "lookup" else self.model

    def observe(self, accepted: int, checked: int, emitted: int) -> None:
        """A row came back: so many drafts were compared, so many hold, so many tokens came of it."""
        self.undrafted = 0 if checked else self.undrafted + emitted
        self.checked += checked
        self.accepted += accepted
        if checked and self.source:
            self.acceptance(self.source).observe(accepted, checked)

    def choose(self, source: str, cost: WindowCost, limit: int, usual: Windows) -> Choice:
        """How many tokens to draft from that source now; `usual`: windows of others, until it has its own."""
        if limit <= 0:
            return NONE
        if self.fixed is not None:
            return Choice(min(self.fixed, limit), 1.0)
        if source == "lookup" or self.steady:
            choice = choose(self.acceptance(source).rate, cost, limit, usual=self.length if source == "model" else 0)
            self.length = choice.tokens if source == "model" else self.length
        else:
            self.windows = self.windows or usual.like()
            choice = choose_chance(self.windows, cost, limit)
        if not choice.tokens and self.undrafted >= PROBE_EVERY:
            return Choice(min(PROBE_TOKENS, limit), 1.0)
        return choice
