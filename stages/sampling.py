"""From logits to token ids, on the last stage and in draft models (D5)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine.contract.errors import DeviceError
from engine.contract.messages import FloatArray, IntArray
from engine.contract.noise import bits_above, gumbel, noise_bits, spread
from engine.contract.sampling import Sampling
from engine.contract.side import Logprobs, RowSide

NEAR: Final = 5.0  # below the best logit over temperature: tokens looked at first
REACHES: Final = (10.0, 20.0, math.inf)  # the same for filters, which need the mass: what is further off is rare
Floats = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.intp]


def greedy(logits: FloatArray) -> IntArray:
    """The likeliest token of each row, the lowest id on ties.

    `logits`: float32 (picked, vocabulary); returns int32 (picked,). Raises DeviceError for logits that are not numbers.

    numpy and not a TopK in the graph: for 1 / 8 / 16 rows of 49,152 logits argmax takes 0.02 / 0.09 / 0.20 ms on one
    thread, beside 8.5 / 19 / 30 ms of the head; with a TopK behind it the head took as long within the noise.
    """
    if not logits.shape[0]:
        return np.zeros(0, np.int32)
    ids = logits.argmax(axis=-1)
    if np.isnan(logits[np.arange(len(ids)), ids]).any():  # argmax stops at the first NaN
        raise DeviceError("the head returned logits that are not numbers")
    return ids.astype(np.int32)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The next token behind each picked position, int32 (picked,), and what was asked to be known of it."""

    tokens: IntArray
    logprobs: list[Logprobs | None]  # per picked position; empty when no row wants any


class Sampler:
    """Chooses tokens from the logits of one head. Not thread-safe."""

    def __init__(self, tokens: npt.NDArray[np.integer]) -> None:
        """`tokens`: the id behind each logit, ascending (a draft's head may lack some)."""
        self._tokens = tokens
        self._spread = spread(tokens)
        self._bits = np.empty((2, len(tokens)), np.uint32)
        self._scaled = np.empty(len(tokens), np.float32)

    def draw(self, logits: Floats, how: Sampling, position: int) -> int:
        """Index of the logit chosen for that position of the answer: a sample, or the likeliest at temperature 0.

        `logits`: (vocabulary,); -inf for what must not come. Exact: candidates near the best are looked at first, and
        the others whenever one of them could still win or count.
        """
        if not how.temperature:
            return int(logits.argmax())
        scaled = np.subtract(logits, logits.max(), out=self._scaled)
        scaled *= np.float32(1 / max(how.temperature, 1e-6))
        if how.top_k or how.top_p < 1.0 or how.min_p > 0.0:
            return self._best(scaled, _kept(scaled, how), how.seed, position)[0]
        winner, score = self._best(scaled, np.flatnonzero(scaled > -NEAR), how.seed, position)
        rivals = self._rivals(score + NEAR, how.seed, position)
        if len(rivals):
            winner = self._best(scaled, np.union1d(rivals, [winner]), how.seed, position)[0]
        return winner

    def _best(self, scaled: Floats, among: Ids, seed: int, position: int) -> tuple[int, float]:
        scores = scaled[among] + gumbel(noise_bits(seed, position, self._spread[among]))
        at = int(scores.argmax())
        return int(among[at]), float(scores[at])

    def _rivals(self, least: float, seed: int, position: int) -> Ids:
        """All tokens whose noise is above `least`."""
        threshold = bits_above(least)
        if threshold >= 1 << 32:
            return np.empty(0, np.intp)
        return np.flatnonzero(noise_bits(seed, position, self._spread, self._bits) >= np.uint32(threshold))

    def choose(self, logits: FloatArray, counts: IntArray, sides: Sequence[RowSide]) -> Chosen:
        """The tokens of one step.

        `logits`: float32 (picked, vocabulary); `counts`: int32 (rows,), picked positions of each row; `sides`: of the
        rows that want more than the likeliest token. Raises DeviceError for logits that are not numbers.
        """
        tokens = greedy(logits)
        logprobs: list[Logprobs | None] = []
        if any(side.how.logprobs is not None for side in sides):
            logprobs = [None] * len(tokens)
        begins = np.cumsum(counts) - counts
        for side in sides:
            first = int(begins[side.row])
            for i in range(int(counts[side.row])):
                line = logits[first + i]
                tokens[first + i] = self.draw(adjusted(line, side, i), side.how, side.position + i)
                if side.how.logprobs is not None:
                    logprobs[first + i] = _logprobs(line, int(tokens[first + i]), side.how.logprobs)
        return Chosen(tokens, logprobs)


def _kept(scaled: Floats, how: Sampling) -> Ids:
    """Indices that top-k, then top-p, then min-p leave; what ties with the last one stays too."""
    total = float(np.exp(scaled, dtype=np.float32).sum(dtype=np.float64)) if how.top_p < 1.0 else 0.0
    for reach in REACHES:
        near = np.flatnonzero(scaled > -reach)
        values = np.sort(scaled[near])[::-1]
        least = _least(values, total, how, reach)
        if least is not None:
            return near[scaled[near] >= least]
    raise AssertionError("everything is within reach")


def _least(values: Floats, total: float, how: Sampling, reach: float) -> float | None:
    """The smallest value that stays, of candidates in descending order; None when smaller ones might.

    `total`: of exp over all tokens, not only over these candidates, all of those above -`reach`.
    """
    floor = math.log(how.min_p) if how.min_p else -math.inf
    complete = math.isinf(reach)
    if how.top_k and (how.top_k <= len(values) or complete):
        values = values[: how.top_k]
        complete = True
    if how.top_p < 1.0:
        mass = np.cumsum(np.exp(values.astype(np.float64)))
        wanted = how.top_p * (mass[-1] if how.top_k else total)
        if how.top_k and not complete:
            return None
        if mass[-1] >= wanted or complete:
            values = values[: int(np.searchsorted(mass, wanted)) + 1]
            complete = True
    if not complete and floor < -reach:
        return None
    return max(float(values[-1]), floor)


def adjusted(logits: Floats, side: RowSide, drafted: int) -> Floats:
    """Logits of one position after penalties, bias and grammar; `drafted`: drafts of the row before it."""
    how = side.how
    plain = not how.penalizes and not how.logit_bias and side.masks is None
    if plain:
        return logits
    found = logits.copy()
    if how.penalizes:
        _penalize(found, side, drafted)
    if how.logit_bias:
        ids = np.fromiter(how.logit_bias, np.intp)
        found[ids] += np.fromiter(how.logit_bias.values(), np.float32)
    if side.masks is not None:
        allowed = np.unpackbits(side.masks[drafted].view(np.uint8), count=len(found), bitorder="little")
        found[allowed == 0] = -np.inf
    return found


def _penalize(logits: Floats, side: RowSide, drafted: int) -> None:
    how = side.how
    counts = dict(zip(side.said, side.times, strict=True))
    for token in side.drafts[:drafted]:
        counts[token] = counts.get(token, 0) + 1
    said = np.fromiter(counts, np.intp, len(counts))
    if how.repetition_penalty != 1.0:
        seen = np.union1d(said, np.array(side.read, np.intp)).astype(np.intp)
        values = logits[seen]
        logits[seen] = np.where(values > 0, values / how.repetition_penalty, values * how.repetition_penalty)
    times = np.fromiter(counts.values(), np.float32, len(counts))
    logits[said] -= how.presence_penalty + how.frequency_penalty * times


def _logprobs(logits: Floats, token: int, top: int) -> Logprobs:
    """Of the model itself: before temperature, penalties, bias and grammar."""
    best = float(logits.max())
    total = best + math.log(float(np.exp(logits - best, dtype=np.float32).sum(dtype=np.float64)))
    ids: list[int] = []
    if top:
        least = np.partition(logits, max(len(logits) - top, 0))[max(len(logits) - top, 0)]
        likeliest = np.flatnonzero(logits >= least)
        ids = likeliest[np.argsort(-logits[likeliest], kind="stable")].tolist()[:top]
    return Logprobs(
        token=float(logits[token]) - total,
        top_ids=tuple(ids),
        top=tuple(float(logits[i]) - total for i in ids),
    )
