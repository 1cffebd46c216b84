"""How long a step takes, learnt from what is in it: its rows, their tokens, and the context that they read.

Least squares that forget, over (1, rows, tokens, context), no coefficient negative. Errors count relative to the
prediction, so that prompt chunks of a second do not drown decode steps of 20 ms. A weak pull towards a usual shape
answers what was not seen yet: when all steps had one row of one token, nothing tells rows from tokens.
"""

from dataclasses import dataclass
from typing import Final

FORGET: Final = 0.97  # weight of everything older, per step
FIRM: Final = 0.1  # steps: how firmly the usual shape is held
MOST_FACTOR: Final = 3.0  # a step that took longer met something else than its work
WARM: Final = 3.0  # steps after which that is believed
SWEEPS: Final = 8  # of coordinate descent per step; it starts where the last one ended
SHAPE: Final = (1.0, 0.05, 0.1, 1e-4)  # relative to an empty step: a row, a token, a position of context


@dataclass(frozen=True, slots=True)
class Work:
    """What a step holds, or a share of it."""

    rows: float = 0.0
    tokens: float = 0.0  # dummies included
    context: float = 0.0  # positions: where each row ends, summed

    def __add__(self, other: "Work") -> "Work":
        return Work(self.rows + other.rows, self.tokens + other.tokens, self.context + other.context)

    def over(self, parts: float) -> "Work":
        """One of so many equal parts."""
        return Work(self.rows / parts, self.tokens / parts, self.context / parts)


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds per step, row, token and position of context; none is negative."""

    fixed: float
    row: float
    token: float
    position: float

    def of(self, work: Work) -> float:
        """Seconds of a step with that work."""
        return self.fixed + self.added(work)

    def added(self, work: Work) -> float:
        """Seconds by which that work makes a step longer."""
        return self.row * work.rows + self.token * work.tokens + self.position * work.context

    def scaled(self, factor: float) -> "Line":
        """All of it times a factor."""
        return Line(self.fixed * factor, self.row * factor, self.token * factor, self.position * factor)


USUAL: Final = Line(*SHAPE)  # in units of an empty step: good for comparing, before anything was measured


class StepTime:
    """The line through recent steps."""

    def __init__(self) -> None:
        size = len(SHAPE)
        self.weight = 0.0  # of the steps that still count
        self._products = [[0.0] * size for _ in range(size)]
        self._sums = [0.0] * size
        self._found: list[float] = []  # in units of SHAPE
        self._line: Line | None = None

    @property
    def known(self) -> bool:
        """Whether any step was seen."""
        return self.weight > 0

    def observe(self, work: Work, seconds: float, weight: float = 1.0) -> None:
        """A step with that work took so long; `weight`, 0 to 1, says how well that is known."""
        seconds = max(seconds, 1e-6)
        expected = max(self.line().of(work), 1e-6) if self.known else seconds
        if self.weight > WARM:
            seconds = min(seconds, MOST_FACTOR * expected)
        features = [s * x for s, x in zip(SHAPE, (1.0, work.rows, work.tokens, work.context), strict=True)]
        keep, share = 1 - (1 - FORGET) * weight, weight / expected**2
        for i, feature in enumerate(features):
            line = self._products[i]
            for j, other in enumerate(features):
                line[j] = keep * line[j] + share * feature * other
            self._sums[i] = keep * self._sums[i] + share * feature * seconds
        self.weight = keep * self.weight + weight
        self._line = None

    def line(self) -> Line:
        """What was learnt; `USUAL` before the first step."""
        if not self.known:
            return USUAL
        if self._line is None:
            self._line = self._solved()
        return self._line

    def _solved(self) -> Line:
        scale = sum(self._sums) / sum(map(sum, self._products))  # the usual shape, as high as it fits best
        found = self._found = self._found or [scale] * len(SHAPE)
        pull = FIRM / scale**2
        rows = [(i, *line, self._sums[i] + pull * scale, line[i]) for i, line in enumerate(self._products)]
        for _ in range(SWEEPS):
            for i, a, b, c, d, wanted, own in rows:  # written out: it runs at every step
                others = a * found[0] + b * found[1] + c * found[2] + d * found[3] - own * found[i]
                found[i] = max((wanted - others) / (own + pull), 0.0)
        return Line(*(s * f for s, f in zip(SHAPE, found, strict=True)))
