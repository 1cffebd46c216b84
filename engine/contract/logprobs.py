"""How likely tokens were, as clients see it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the likeliest tokens at a place."""

    id: int
    logprob: float
    bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """How likely the model itself found a token: natural logarithms, before temperature, penalties and grammar."""

    id: int
    logprob: float
    bytes: tuple[int, ...] = ()  # UTF-8 of what the token adds to a text, of a special token its name
    top: tuple[TopLogprob, ...] = ()  # likeliest tokens and theirs
