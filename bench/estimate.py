"""A median and how well it is known."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """The median of samples, and its interval of 95 %: bootstrapped, the same every time."""

    middle: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        digits = 0 if abs(self.middle) >= 100 else 1 if abs(self.middle) >= 10 else 2
        if self.count == 1:
            return f"{self.middle:.{digits}f}"
        return f"{self.middle:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def estimate(samples: Sequence[float]) -> Estimate:
    """Raises ValueError for none."""
    if not samples:
        raise ValueError("no samples")
    values = np.asarray(samples, np.float64)
    draws = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    medians = np.median(values[draws], axis=1)
    low, high = np.quantile(medians, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(np.median(values)), float(low), float(high), len(values))


def estimate_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Of paired samples: round i of one side against round i of the other."""
    return estimate([a / b for a, b in zip(ours, theirs, strict=True)])
