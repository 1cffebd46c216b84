"""The exact distribution of the first tokens of a sampled answer, by its definition, and how far samples are from it.

Independent of `stages/sampling.py`: plain numpy in float64, everything sorted, one filter after the other.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Said = tuple[int, ...]  # the answer so far
LEAST = 5.0  # draws expected of a cell; what is expected more rarely is pooled


def probabilities(logits: Doubles, how: Mapping[str, Any], prompt: Sequence[int], said: Said) -> Doubles:
    """Of each next token, given the fields of a request."""
    logits = logits.copy()
    for token in {*prompt, *said}:
        penalty = how.get("repetition_penalty", 1.0)
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token, times in Counter(said).items():
        logits[token] -= how.get("presence_penalty", 0.0) + times * how.get("frequency_penalty", 0.0)
    for token, bias in how.get("logit_bias", {}).items():
        logits[int(token)] += bias
    weights = np.exp((logits - logits.max()) / how["temperature"])
    kept = np.argsort(-weights, kind="stable")[: how.get("top_k") or None]
    share = np.cumsum(weights[kept]) / weights[kept].sum()
    before = np.concatenate([[0.0], share[:-1]])  # the token that completes top_p stays
    kept = kept[before < how.get("top_p", 1.0)]
    kept = kept[weights[kept] >= how.get("min_p", 0.0) * weights.max()]
    found = np.zeros(len(logits))
    found[kept] = weights[kept] / weights[kept].sum()
    return found


class Tree:
    """Beginnings of answers that are expected often enough, and the distribution behind each."""

    def __init__(self, next_token: Callable[[Said], Doubles], depth: int, draws: int) -> None:
        """`next_token`: the distribution behind a beginning; `depth`: tokens looked at, of that many `draws`."""
        self._depth, self._draws = depth, draws
        self._behind: dict[Said, Doubles] = {}
        self.expected: dict[Said, float] = {}  # by cell: a whole beginning, or one that went on in some rarer way
        self._grow(next_token, (), 1.0)

    def _grow(self, next_token: Callable[[Said], Doubles], said: Said, probability: float) -> None:
        behind = self._behind[said] = next_token(said)
        often = [int(t) for t in np.flatnonzero(self._draws * probability * behind >= LEAST)]
        for token in often:
            if len(said) + 1 < self._depth:
                self._grow(next_token, (*said, token), probability * float(behind[token]))
            else:
                self.expected[(*said, token)] = self._draws * probability * float(behind[token])
        self.expected[said] = self._draws * probability * float(1 - behind[often].sum())

    def _cell(self, answer: Said) -> Said:
        for at, token in enumerate(answer):
            if answer[:at] in self._behind and not self._behind[answer[:at]][token]:
                raise AssertionError(f"token {token} behind {answer[:at]} is impossible")
        return next(answer[:n] for n in range(len(answer), -1, -1) if answer[:n] in self.expected)

    def statistic(self, answers: Sequence[Said]) -> tuple[float, int]:
        """Pearson's chi-square and its degrees of freedom. AssertionError when an answer has an impossible token."""
        assert len(answers) == self._draws
        counts = Counter(self._cell(answer[: self._depth]) for answer in answers)
        cells = list(self._pooled(counts))
        return sum((count - expected) ** 2 / expected for count, expected in cells), len(cells) - 1

    def _pooled(self, counts: Mapping[Said, int]) -> Iterator[tuple[float, float]]:
        rest, rest_expected = 0.0, 0.0
        for cell, expected in self.expected.items():
            if expected >= LEAST:
                yield counts[cell], expected
            else:
                rest, rest_expected = rest + counts[cell], rest_expected + expected
        if rest_expected > 1e-9:
            yield rest, rest_expected


def deviations(chi_square: float, freedom: int) -> float:
    """How many standard deviations the chi-square is too large: Wilson and Hilferty's approximation."""
    spread = 2 / (9 * freedom)
    return ((chi_square / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
