"""What only the last stage needs of a row, and what it says of the tokens it chose; both as JSON and masks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.contract.errors import FrameError
from engine.contract.sampling import Sampling, expand_sampling

Masks = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSide:
    """How the tokens of one row are chosen."""

    row: int  # of the step
    how: Sampling
    position: int  # in the sequence, of the token behind the first picked position: what the noise is keyed by
    drafts: tuple[int, ...] = ()  # tokens behind the first picked position: they count as said further on
    read: tuple[int, ...] = ()  # distinct tokens of the prompt, when a penalty counts them
    said: tuple[int, ...] = ()  # distinct tokens of the answer so far, when a penalty counts them
    times: tuple[int, ...] = ()  # how often each of those was said
    masks: Masks | None = None
    """int32 (picked, words): bit t % 32 of word t // 32 is set when token t may come."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms of probabilities at one position, of the model itself."""

    token: float  # of the token that was chosen
    top_ids: tuple[int, ...]  # likeliest first
    top: tuple[float, ...]


def pack_rows(rows: Sequence[RowSide]) -> tuple[dict[str, Any], Masks | None]:
    """JSON fields, and the masks of all rows below each other, int32 (picked of masked rows, words)."""
    masks = [row.masks for row in rows if row.masks is not None]
    return {"rows": [_fields(row) for row in rows]}, np.concatenate(masks) if masks else None


def _fields(row: RowSide) -> dict[str, Any]:
    found: dict[str, Any] = {"row": row.row, "how": row.how.compact(), "position": row.position}
    for name in ("drafts", "read", "said", "times"):
        if value := getattr(row, name):
            found[name] = value
    if row.masks is not None:
        found["masked"] = len(row.masks)
    return found


def unpack_rows(found: Mapping[str, Any], masks: Masks) -> tuple[RowSide, ...]:
    """The reverse of `pack_rows`. Raises FrameError."""
    rows: list[RowSide] = []
    at = 0
    try:
        for line in found["rows"]:
            number, position, masked = _whole([line["row"], line["position"], line.get("masked", 0)])
            row = RowSide(
                row=number,
                how=expand_sampling(line["how"]),
                position=position,
                drafts=_whole(line.get("drafts", ())),
                read=_whole(line.get("read", ())),
                said=_whole(line.get("said", ())),
                times=_whole(line.get("times", ())),
                masks=masks[at : at + masked] if masked else None,
            )
            at += masked
            rows.append(row)
    except (KeyError, TypeError, AttributeError) as error:
        raise FrameError(f"not what a last stage needs: {error}") from error
    if at != len(masks):
        raise FrameError(f"{len(masks)} masks for {at} positions")
    return tuple(rows)


def _whole(found: Any) -> tuple[int, ...]:
    """Raises TypeError for anything but whole numbers of at least 0."""
    if set(map(type, found)) - {int} or min(found, default=0) < 0:
        raise TypeError(f"{found!r:.80} where whole numbers of at least 0 belong")
    return tuple(found)


def pack_logprobs(found: Sequence[Logprobs | None]) -> list[Any]:
    """For a result's JSON."""
    return [None if one is None else [one.token, one.top_ids, one.top] for one in found]


def unpack_logprobs(found: Any) -> list[Logprobs | None]:
    """The reverse of `pack_logprobs`. Raises FrameError."""
    try:
        return [None if one is None else _logprobs(*one) for one in found]
    except (TypeError, ValueError) as error:
        raise FrameError(f"not logprobs: {error}") from error


def _logprobs(token: Any, ids: Any, top: Any) -> Logprobs:
    if len(ids) != len(top) or set(map(type, [token, *top])) - {int, float}:
        raise TypeError(f"{token!r:.80}, {top!r:.80}")
    return Logprobs(float(token), _whole(ids), tuple(map(float, top)))
