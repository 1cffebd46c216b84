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

NEAR: Final = 10.0  # below the best logit over temperature: tokens looked at first
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

    def draw(self, logits: Floats, how: Sampling, position: int) -> int:
        """Index of the logit chosen for that position of the answer: a sample, or the likeliest at temperature 0.

        `logits`: (vocabulary,); -inf for what must not come. Exact: candidates near the best are looked at first, and
        the others whenever one of them could still win or count.
        """
        if not how.temperature:
            return int(logits.argmax())
        best = float(logits.max())
        scaled = (logits - best) / np.float32(max(how.temperature, 1e-6))
        near = np.flatnonzero(scaled > -NEAR)
        if how.top_k or how.top_p < 1.0 or how.min_p > 0.0:
            kept = _kept(scaled, near, how)
            return self._best(scaled, kept, how.seed, position)[0]
        winner, score = self._best(scaled, near, how.seed, position)
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
        return np.flatnonzero(noise_bits(seed, position, self._spread) >= np.uint32(threshold))

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


def _kept(scaled: Floats, near: Ids, how: Sampling) -> Ids:
    """Indices that top-k, then top-p, then min-p leave, likeliest first."""
    order = near[np.argsort(-scaled[near], kind="stable")]
    if len(order) < len(scaled):
        total = float(np.exp(scaled, dtype=np.float32).sum(dtype=np.float64))
        if not _covers(scaled[order], total, how):
            order = np.argsort(-scaled, kind="stable")
    else:
        total = float(np.exp(scaled[order].astype(np.float64)).sum())
    if how.top_k:
        order = order[: how.top_k]
    mass = np.cumsum(np.exp(scaled[order].astype(np.float64)))
    if how.top_p < 1.0:
        whole = mass[-1] if how.top_k else total
        order = order[: int(np.searchsorted(mass, how.top_p * whole)) + 1]
    if how.min_p:
        order = order[scaled[order] >= math.log(how.min_p)]
    return order


def _covers(candidates: Floats, total: float, how: Sampling) -> bool:
    """Whether the filters leave nothing but candidates. `total`: of exp(scaled), over all tokens."""
    floor = how.min_p > 0 and math.log(how.min_p) >= -NEAR
    if how.top_k:
        return how.top_k <= len(candidates) or (floor and how.top_p == 1.0)
    return floor or (how.top_p < 1.0 and float(np.exp(candidates.astype(np.float64)).sum()) >= how.top_p * total)


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
        likeliest = np.argpartition(-logits, top - 1)[:top] if top < len(logits) else np.arange(len(logits))
        ids = likeliest[np.lexsort((likeliest, -logits[likeliest]))].tolist()
    return Logprobs(
        token=float(logits[token]) - total,
        top_ids=tuple(ids),
        top=tuple(float(logits[i]) - total for i in ids),
    )
