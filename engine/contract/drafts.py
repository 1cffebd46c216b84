"""What the decoder asks of a draft model, and what it gets."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import orjson

from engine.contract.errors import FrameError
from engine.contract.reading import read
from engine.contract.sampling import GREEDY, Sampling, expand_sampling

DraftModelState = Literal["ready", "behind", "impossible"]
"""behind: still reading a long prompt; impossible: the sequence is beyond the model's context or vocabulary."""
RemoteState = DraftModelState | Literal["missing"]
MAX_DRAFT_TOKENS: Final = 16  # of one window; more never paid in any measurement, over slow links included


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """Continue one sequence by guessing."""

    key: str  # the same for every request of a sequence: the draft model keeps a cache by it
    tokens: tuple[int, ...]  # the whole sequence, drafts in flight included
    count: int  # tokens wanted at most; 0: only take in the tokens
    how: Sampling = GREEDY  # drafted with the target's noise a sample is the target's as often as can be (D5)
    least: float = 0.0  # chance that all drafts up to one hold, as the draft model sees it, below which they end
    ahead: int = 0  # of them that guess what is being computed anyway: in no chance, never the end
    kept: int = 0  # drafts behind those that cost nothing: taken however unlikely


@dataclass(frozen=True, slots=True)
class Draft:
    """What a draft model says to one request."""

    tokens: tuple[int, ...]
    state: DraftModelState = "ready"


@dataclass(frozen=True, slots=True)
class RemoteDraftRequest:
    """The same on its way to `draft-run`: only what changed since the last time."""

    key: str
    base: int  # tokens of this key that were sent before and still hold
    tokens: list[int]  # what follows them
    count: int
    how: dict[str, Any] = field(default_factory=dict[str, Any])  # Sampling.compact
    least: float = 0.0
    ahead: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class RemoteDrafts:
    """The answer. "missing": what was sent before is not there any more, send that key from its beginning."""

    drafts: list[list[int]]  # one per request, in order
    states: list[RemoteState]


def encode_draft_requests(requests: list[RemoteDraftRequest]) -> bytes:
    """One JSON list."""
    return orjson.dumps([asdict(request) for request in requests])


def decode_draft_requests(data: bytes) -> list[RemoteDraftRequest]:
    """Raises FrameError when it is something else."""
    try:
        found: Any = orjson.loads(data)
        if not isinstance(found, list):
            raise TypeError("it is no list")
        requests = [read(RemoteDraftRequest, fields) for fields in found]  # type: ignore[reportUnknownVariableType]
        for request in requests:
            _check_counts([request.base, request.count, request.ahead, request.kept, *request.tokens])
            expand_sampling(request.how)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise FrameError(f"not a list of draft requests: {error}") from error
    return requests


def encode_drafts(drafts: RemoteDrafts) -> bytes:
    """One JSON object."""
    return orjson.dumps(asdict(drafts))


def decode_drafts(data: bytes) -> RemoteDrafts:
    """Raises FrameError when it is something else."""
    try:
        drafts = read(RemoteDrafts, orjson.loads(data))
        for draft in drafts.drafts:
            _check_counts(draft)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise FrameError(f"not drafts: {error}") from error
    return drafts


def _check_counts(numbers: list[int]) -> None:
    if min(numbers, default=0) < 0:
        raise FrameError("token ids and counts are whole numbers of at least 0")


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences share at their beginning; quick when they part near the end of the shorter."""
    most = length = min(len(one), len(other))
    step = 1
    while length and one[:length] != other[:length]:
        length, step = max(length - step, 0), 2 * step
    while length < most and one[length] == other[length]:
        length += 1
    return length
