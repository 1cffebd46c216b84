"""How tokens are chosen: what a client may ask, and what of it the last stage is told. Field names are OpenAI's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from engine.contract.errors import ErrorCode, FrameError, PromptError
from engine.contract.reading import read

MAX_BIASED: Final = 1024  # tokens with a bias of their own
MAX_TOP_LOGPROBS: Final = 20
MAX_TEMPERATURE: Final = 2.0
SEED_BITS: Final = 64


def _no_bias() -> Mapping[int, float]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the tokens of one answer are chosen.

    Order: penalties and bias change the logits, a grammar forbids tokens, the temperature divides, then `top_k`, then
    `top_p` of what is left, then `min_p`. Of the rest one token is drawn; temperature 0 takes the likeliest.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0
    min_p: float = 0.0  # of the likeliest token's probability
    repetition_penalty: float = 1.0  # logits of tokens of prompt and answer: divided when positive, else multiplied
    presence_penalty: float = 0.0  # subtracted from the logits of tokens of the answer
    frequency_penalty: float = 0.0  # and once more for every time they are in it
    logit_bias: Mapping[int, float] = field(default_factory=_no_bias)  # added to the logits of these tokens
    seed: int = 0  # of the noise; 64 bits, unsigned
    logprobs: int | None = None  # so many likeliest tokens beside the chosen one's; None: no logprobs at all

    @property
    def penalizes(self) -> bool:
        """Whether the tokens so far matter."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def plain(self) -> bool:
        """Whether the likeliest token is all that is wanted."""
        return self.temperature == 0.0 and not self.penalizes and not self.logit_bias and self.logprobs is None

    def compact(self) -> dict[str, Any]:
        """The fields that differ from the defaults, for JSON."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.logit_bias:
            found["logit_bias"] = [list(self.logit_bias), list(self.logit_bias.values())]
        return {name: value for name, value in found.items() if value != getattr(GREEDY, name)}


GREEDY: Final = Sampling()


def expand_sampling(found: Mapping[str, Any]) -> Sampling:
    """The reverse of `Sampling.compact`. Raises FrameError."""
    try:
        if "logit_bias" in found:
            ids, values = found["logit_bias"]
            found = {**found, "logit_bias": dict(zip(ids, values, strict=True))}
        if set(map(type, found.get("logit_bias", {}))) - {int}:
            raise TypeError("logit_bias has a key that is no token id")
        return read(Sampling, {**found}, exactly=True)
    except (TypeError, ValueError, AttributeError) as error:
        raise FrameError(f"not a way to choose tokens: {error}") from error


def _wrong(name: str, expected: str) -> PromptError:
    return PromptError(ErrorCode.INVALID_PROMPT, f"{name!r} must be {expected}", field=name)


def _number(least: float, most: float, *, above: bool = False) -> Callable[[str, object], float]:
    expected = f"a number above {least:g} and up to {most:g}" if above else f"a number from {least:g} to {most:g}"

    def read(name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise _wrong(name, expected)
        if above and value == least:
            raise _wrong(name, expected)
        return float(value)

    return read


def _whole(least: int, most: int) -> Callable[[str, object], int]:
    def read(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _wrong(name, f"a whole number from {least} to {most}")
        return value

    return read


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "true or false")
    return value


def _bias(name: str, value: Any) -> Mapping[int, float]:
    expected = f"an object of up to {MAX_BIASED} token ids, each with a number from -100 to 100"
    if not isinstance(value, dict) or len(value) > MAX_BIASED:  # type: ignore[reportUnknownArgumentType]
        raise _wrong(name, expected)
    found: dict[int, float] = {}
    pairs: dict[Any, Any] = value  # type: ignore[reportUnknownVariableType]
    for key, bias in pairs.items():
        digits = str(key)
        number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not (digits.isascii() and digits.isdigit()) or not number or not -100 <= bias <= 100:
            raise _wrong(name, expected)
        found[int(digits)] = float(bias)
    return found


SAMPLING_READERS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "temperature": _number(0, MAX_TEMPERATURE),
    "top_k": _whole(0, 1 << 30),
    "top_p": _number(0, 1, above=True),
    "min_p": _number(0, 1),
    "repetition_penalty": _number(0, 10, above=True),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "logit_bias": _bias,
    "seed": _whole(-(1 << 63), (1 << 64) - 1),
    "logprobs": _flag,
    "top_logprobs": _whole(0, MAX_TOP_LOGPROBS),
}


def sampling_from(values: Mapping[str, Any], default_seed: int) -> Sampling:
    """From fields that the readers have checked. Raises PromptError for fields that contradict each other."""
    wanted = dict(values)
    top = wanted.pop("top_logprobs", None)
    if not wanted.pop("logprobs", False):
        if top is not None:
            reason = "'top_logprobs' needs 'logprobs' to be true"
            raise PromptError(ErrorCode.INVALID_PROMPT, reason, field="top_logprobs")
    else:
        wanted["logprobs"] = top or 0
    wanted["seed"] = wanted.get("seed", default_seed) % (1 << SEED_BITS)
    return Sampling(**wanted)
