"""What was told of an answer that is asked for again: whoever answers now goes on behind it."""

from dataclasses import asdict, dataclass
from typing import Any, cast

from engine.contract.errors import ErrorCode, PromptError
from engine.contract.logprobs import TokenLogprob
from engine.contract.reading import read


@dataclass(frozen=True, slots=True)
class Told:
    """The beginning of one choice."""

    index: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()  # of each id, or none
    numerics: tuple[str, ...] = ()  # fingerprints of the chains that computed the answer so far, on one choice

    def as_fields(self) -> dict[str, Any]:
        """As a prompt's `told` lists it."""
        return asdict(self)


def read_told(name: str, value: Any) -> tuple[Told, ...]:
    """Raises PromptError."""
    if not isinstance(value, list):
        raise _wrong(name, f"{name!r} must be a list")
    try:
        told = tuple(read(Told, one, place=f"{name}[{at}]") for at, one in enumerate(cast("list[Any]", value)))
    except TypeError as error:
        raise _wrong(name, str(error)) from error
    if len({one.index for one in told}) < len(told):
        raise _wrong(name, f"{name!r} names a choice twice")
    return told


def _wrong(field: str, message: str) -> PromptError:
    return PromptError(ErrorCode.INVALID_PROMPT, message, field=field)
