"""Which drafts hold: a pure comparison with the target's own tokens.

The target's token at a position depends on the tokens before it, and under sampling on nothing but seed and position
besides (D5). A draft that equals it is therefore accepted and changes nothing, greedy or sampled: without drafts the
same token would have come. The first one that differs is replaced by the target's, and what follows it is void.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one verify row says of the drafts in it, and of those behind it."""

    tokens: tuple[int, ...]  # accepted drafts, then the target's own next token
    accepted: int  # drafts that hold, the guess of that next token included
    checked: int  # drafts that were compared: up to the first that fails
    onward: bool  # nothing contradicts what was drafted behind the row: windows in flight stay good


def verify(drafts: Sequence[int], target: Sequence[int]) -> Verdict:
    """Compare. `target[i]` is the target's token after `drafts[:i]`; the row held `len(target) - 1` drafts.

    `drafts` may be longer, when later windows are under way or in preparation: the first of those is the guess of the
    row's own next token. Raises ValueError when there are fewer drafts than the row held, or no target token.
    """
    held = len(target) - 1
    if held < 0 or len(drafts) < held:
        raise ValueError(f"{len(target)} target tokens for {len(drafts)} drafts")
    compared = min(len(drafts), held + 1)
    accepted = 0
    while accepted < compared and drafts[accepted] == target[accepted]:
        accepted += 1
    return Verdict(
        tokens=tuple(target[: min(accepted, held) + 1]),
        accepted=accepted,
        checked=min(accepted + 1, compared),
        onward=accepted == compared,
    )
