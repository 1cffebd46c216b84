"""A draft model over any runner: guesses what follows each of several sequences, all of them in one inference a token.

Its cache needs no messages of its own: a request brings the whole sequence, and what the cache holds of it is found by
comparing. Rejected drafts, tokens the target added, a prompt that came late: all are a row that starts where the two
part. Sequences that begin alike share blocks, as in the decoder. A wrong guess costs time, never text, so nothing here
has to be exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine.contract.drafts import MAX_DRAFT_TOKENS, Draft, DraftRequest, common_prefix
from engine.contract.errors import DeviceError
from engine.contract.messages import ROW_COLUMNS, Rows
from engine.contract.sampling import Sampling
from engine.kv.blocks import BlockPool
from engine.kv.table import BlockTable
from stages.runner import Runner
from stages.sampling import Sampler

CHUNK: Final = 64  # prompt tokens per call while others wait for their drafts
LONG_CHUNK: Final = 256  # and while nobody does


@dataclass(slots=True)
class _Cached:
    """What the cache holds of one sequence."""

    tokens: tuple[int, ...] = ()
    table: BlockTable = field(default_factory=BlockTable)


@dataclass(slots=True)
class _Job:
    request: DraftRequest
    cached: _Cached
    start: int  # tokens of the sequence that the cache holds
    end: int  # tokens of it that are fed by this call
    drafts: list[int] = field(default_factory=list[int])
    chance: float = 1.0  # that all of them hold
    ended: bool = False

    @property
    def whole(self) -> bool:
        return self.end == len(self.request.tokens)

    def add(self, token: int, chance: float) -> None:
        """One more draft, unless it makes the window too unlikely to pay."""
        request, place = self.request, len(self.drafts)
        self.chance *= chance if place >= request.ahead else 1.0
        self.ended = self.chance < request.least and place >= request.ahead + request.kept
        if not self.ended:
            self.drafts.append(token)


class _Head:
    """From logits to tokens: those that may be drafted."""

    def __init__(self, tokens: npt.NDArray[np.int32] | None, vocabulary: int) -> None:
        self._rows: slice | npt.NDArray[np.intp] = slice(vocabulary)
        self._tokens = tokens
        if tokens is not None:
            shared = tokens < vocabulary
            self._rows = slice(None) if shared.all() else np.flatnonzero(shared)
            self._tokens = tokens[shared]
        self._sampler = Sampler(np.arange(vocabulary) if self._tokens is None else self._tokens)

    def choose(self, logits: npt.NDArray[Any], wanted: Sequence[tuple[Sampling, int]]) -> tuple[list[int], list[float]]:
        """One token per line of logits, and how likely the likeliest one is.

        `wanted`: how each is chosen, and its position in the sequence.
        """
        lines = logits[:, self._rows]
        best = lines.argmax(axis=-1)
        highest = lines[np.arange(len(best)), best]
        chances = 1.0 / np.exp(lines - highest[:, None], dtype=np.float32).sum(axis=-1)
        for i, (how, position) in enumerate(wanted):
            if how.temperature:
                best[i] = self._sampler.draw(lines[i], how, position)
        return (best if self._tokens is None else self._tokens[best]).tolist(), chances.tolist()


class DraftModel:
    """Not thread-safe: one call at a time."""

    def __init__(self, runner: Runner, *, vocabulary: int, head: npt.NDArray[np.int32] | None = None) -> None:
        """`runner`: the one stage of a paged draft. `vocabulary`: ids that draft and target share; no other is drafted.

        Padded embedding rows make one of them larger. `head`: the token of each row of a narrow head, None: it is
        whole; what the draft reads is not narrowed.
        """
        self._head = _Head(head, vocabulary)
        self._runner, self._vocabulary, self._can = runner, vocabulary, runner.capabilities
        self._pool = BlockPool(0, 0)
        self._cache: dict[str, _Cached] = {}  # least recently used first
        self._forget()

    def held(self, key: str) -> int:
        """Tokens of a sequence in the cache."""
        return len(self._cache[key].tokens) if key in self._cache else 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, in order. Raises DeviceError."""
        budget = CHUNK if any(request.count for request in requests) else LONG_CHUNK
        keep = {request.key for request in requests}
        jobs = [self._job(request, budget, keep) for request in requests]
        fed = [job for job in jobs if job is not None]
        try:
            drafting = self._feed(fed)
            while drafting := [job for job in drafting if not job.ended and len(job.drafts) < self._most(job.request)]:
                self._extend(drafting)
        except DeviceError:
            self._forget()
            raise
        for job in fed:
            self._register(job)
        return [_draft(job) for job in jobs]

    def _forget(self) -> None:
        self._cache.clear()
        self._pool = BlockPool(self._can.blocks, self._can.block_size)

    def _job(self, request: DraftRequest, budget: int, keep: set[str]) -> _Job | None:
        """None: this sequence is beyond the model."""
        length = len(request.tokens)
        cached = self._cache.pop(request.key, None) or self._shared(request)
        start = cached.table.cut(self._pool, min(common_prefix(cached.tokens, request.tokens), length - 1))
        beyond = max(request.tokens[start:]) >= self._vocabulary
        if beyond or length >= self._can.context_length or not self._reserve(cached, length + request.count, keep):
            cached.table.clear(self._pool)
            return None
        self._cache[request.key] = cached
        end = min(length, start + budget)
        cached.tokens = request.tokens[:end]
        return _Job(request, cached, start, end)

    def _shared(self, request: DraftRequest) -> _Cached:
        """A new sequence, with the blocks of others that begin like it."""
        table = BlockTable()
        places = self._pool.index.match(request.tokens, len(request.tokens) - 1)
        return _Cached(request.tokens[: table.share(self._pool, places)], table)

    def _register(self, job: _Job) -> None:
        """Others may share what this one has read; not the latest tokens, which may still turn out to be wrong."""
        settled = min(job.end, len(job.request.tokens) - MAX_DRAFT_TOKENS)
        job.cached.table.register(self._pool, job.request.tokens, settled)

    def _most(self, request: DraftRequest) -> int:
        return min(request.count, self._can.context_length - len(request.tokens))

    def _reserve(self, cached: _Cached, tokens: int, keep: set[str]) -> bool:
        """Blocks for a sequence that long, from those longest unused if need be; never from those of `keep`."""
        while not cached.table.grow(self._pool, min(tokens, self._can.context_length)):
            oldest = next((key for key in self._cache if key not in keep), None)
            if oldest is None:
                return False
            self._cache.pop(oldest).table.clear(self._pool)
        return True

    def _feed(self, jobs: list[_Job]) -> list[_Job]:
        """Bring the caches up to date; the jobs that may draft, each with its first token."""
        if not jobs:
            return []
        ready = [job for job in jobs if job.whole and job.request.count]
        rows = [
            (job.cached, job.start, job.request.tokens[job.start : job.end], job.request.how if job in ready else None)
            for job in jobs
        ]
        for job, token, chance in zip(ready, *self._infer(rows), strict=True):
            job.add(token, chance)
        return ready

    def _extend(self, jobs: list[_Job]) -> None:
        rows = [(job.cached, len(job.cached.tokens), (job.drafts[-1],), job.request.how) for job in jobs]
        for job, token, chance in zip(jobs, *self._infer(rows), strict=True):
            job.cached.tokens += (job.drafts[-1],)
            job.add(token, chance)

    def _infer(
        self, rows: Sequence[tuple[_Cached, int, Sequence[int], Sampling | None]]
    ) -> tuple[list[int], list[float]]:
        """The next token of every row that wants one, and its chance.

        Rows: cache, start, tokens, and how the next one is chosen; None: it is not wanted.
        """
        table = np.zeros((len(rows), ROW_COLUMNS), np.int32)
        blocks: list[int] = []
        flat: list[int] = []
        for line, (cached, start, tokens, how) in zip(table, rows, strict=True):
            wanted = how is not None
            used = -(-(start + len(tokens)) // self._can.block_size)
            line[:] = (start, len(tokens), 0, len(tokens) - 1 if wanted else 0, wanted, used)
            blocks += cached.table.blocks[:used]
            flat += tokens
        logits: npt.NDArray[Any] = self._runner.infer(Rows(table, np.array(blocks, np.int32)), np.array(flat, np.int32))
        return self._head.choose(
            logits, [(how, start + len(tokens)) for _, start, tokens, how in rows if how is not None]
        )


def _draft(job: _Job | None) -> Draft:
    if job is None:
        return Draft((), "impossible")
    return Draft(tuple(job.drafts), "ready" if job.whole else "behind")
