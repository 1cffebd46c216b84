"""How many tokens to draft: pure functions of acceptance and measured costs.

With every draft accepted with probability a, independently, a row of K drafts brings (1 - a^(K+1)) / (1 - a) tokens
(Leviathan et al., 2023, eq. 1). It costs its share of a step with K + 1 tokens a row, and K tokens of drafting. The
best K is the one with the most tokens per second; when that hardly beats no drafts at all, none are made.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from engine.contract.drafts import MAX_DRAFT_TOKENS

PRIOR_WEIGHT: Final = 4.0  # drafts: how firmly the first guess of an acceptance is held
FORGET: Final = 0.9  # weight of everything older, per row
Seconds = Callable[[int], float]
MIN_GAIN: Final = 1.03  # below that the noise of the measurements decides, and drafts only cost
PROBE_EVERY: Final = 32  # tokens without a draft after which a short one looks whether things have changed
PROBE_TOKENS: Final = 2


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


@dataclass(frozen=True, slots=True)
class Choice:
    """A number of drafts and what it is expected to bring."""

    tokens: int
    gain: float  # speed relative to no drafts


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Tokens that a verify row with so many drafts brings."""
    if acceptance >= 1.0:
        return drafts + 1.0
    return (1 - acceptance ** (drafts + 1)) / (1 - acceptance)


def choose(acceptance: float, seconds: Seconds, limit: int = MAX_DRAFT_TOKENS) -> Choice:
    """The best number of drafts, 0 to `limit`. `seconds`: of a window with so many drafts, drafting included."""

    def speed(drafts: int) -> float:
        return expected_tokens(acceptance, drafts) / max(seconds(drafts), 1e-9)

    best = max(range(limit + 1), key=speed)
    gain = speed(best) / speed(0)
    return Choice(best, gain) if gain >= MIN_GAIN else Choice(0, 1.0)


@dataclass(slots=True)
class DraftState:
    """What one sequence knows of its drafts."""

    sources: tuple[str, ...]  # in order of preference, of "lookup" and "model"; empty: never drafts
    fixed: int | None = None  # tokens per window instead of the best number
    model: Acceptance = field(default_factory=lambda: Acceptance(0.65))
    lookup: Acceptance = field(default_factory=lambda: Acceptance(0.6))
    source: str = ""  # of the drafts under way
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
        if checked:
            self.acceptance(self.source).observe(accepted, checked)

    def choose(self, source: str, seconds: Seconds, limit: int) -> Choice:
        """How many tokens to draft from that source now."""
        if limit <= 0:
            return Choice(0, 1.0)
        if self.fixed is not None:
            return Choice(min(self.fixed, limit), 1.0)
        choice = choose(self.acceptance(source).rate, seconds, limit)
        if not choice.tokens and self.undrafted >= PROBE_EVERY:
            return Choice(min(PROBE_TOKENS, limit), 1.0)
        return choice
