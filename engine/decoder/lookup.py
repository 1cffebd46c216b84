"""Prompt lookup: what followed the last time the same few tokens came, in prompt or answer. No model.

After "Prompt Lookup Decoding" (A. Saxena, 2023); the index makes each look a few dictionary reads.
"""

from collections.abc import Sequence
from typing import Final

LONGEST: Final = 4  # tokens compared; the longest match wins
SHORTEST: Final = 3


class LookupIndex:
    """Where each run of three or four tokens of one sequence was last followed by something."""

    def __init__(self) -> None:
        self._followed: dict[tuple[int, ...], int] = {}  # run of tokens -> position behind it
        self._taken = 0  # positions that are indexed as followers

    def take(self, tokens: Sequence[int]) -> None:
        """Index what is new in `tokens`, which only ever grows."""
        followed = self._followed
        for at in range(max(self._taken, SHORTEST), len(tokens)):
            for length in range(SHORTEST, min(LONGEST, at) + 1):
                followed[tuple(tokens[at - length : at])] = at
        self._taken = len(tokens)

    def propose(self, tokens: Sequence[int], ahead: Sequence[int], count: int) -> tuple[int, ...]:
        """Up to `count` tokens that may follow; none when no run of three came before.

        `tokens` are those indexed, `ahead` is assumed behind them.
        """
        end = (*tokens[-LONGEST:], *ahead)[-LONGEST:]
        for length in range(min(LONGEST, len(end)), SHORTEST - 1, -1):
            at = self._followed.get(end[-length:])
            if at is None:
                continue
            found = [*tokens[at : at + count]]
            while 0 < len(found) < count:  # the match reaches the end: the text repeats itself
                source = at + len(found) - len(tokens)
                found.append(ahead[source] if source < len(ahead) else found[source - len(ahead)])
            return tuple(found)
        return ()
