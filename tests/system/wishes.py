"""Requests of every kind in a seeded order: what many different users would ask, and what they do meanwhile."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.system.prompts import THIRTY

MOST_TOKENS: Final = 24  # of a calm answer; wishes take a beginning of it
WORDS: Final = ("river", "stone", "cloud", "seven", "green", "quiet", "engine", "letter", "window", "under", "bread")
LONG: Final = " ".join(f"Note {i}: the {WORDS[i % 11]} {WORDS[i * 7 % 11]} was moved." for i in range(20)) + " Summary:"
SAMPLING: Final[tuple[dict[str, Any], ...]] = (
    {},
    {},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_p": 0.9, "logprobs": True, "top_logprobs": 3},
    {"temperature": 0.9, "top_k": 30, "min_p": 0.02},
    {"temperature": 0.7, "repetition_penalty": 1.1, "frequency_penalty": 0.3},
    {"presence_penalty": 0.8, "logit_bias": {"28": -5.0}},
)
FORMATS: Final[tuple[dict[str, Any], ...]] = (
    {"type": "choice", "choices": ["red", "green", "very dark blue"]},
    {"type": "regex", "regex": "[0-9]{3}-[0-9]{4}"},
    {"type": "json_object"},
)
DRAFTS: Final[tuple[dict[str, Any], ...]] = (
    {"draft": "none"},
    {"draft": "lookup"},
    {"draft": "auto"},
    {"draft": "model", "draft_tokens": 3},
)


def catalogue() -> list[dict[str, Any]]:
    """Questions whose answers are known beforehand: the seed decides, and nothing that happens beside them."""
    asked = [
        {"prompt": text, **how, "seed": i} for i, (text, how) in enumerate(zip(THIRTY, SAMPLING * 2, strict=False))
    ]
    asked += [{"prompt": f"Answer {i}:", "response_format": form, "temperature": 0.8, "seed": i}
              for i, form in enumerate(FORMATS)]  # fmt: skip
    asked += [{"prompt": THIRTY[20], "n": 3, "temperature": 0.9, "seed": 5}, {"prompt": THIRTY[21], "n": 2}]
    asked += [{"prompt": LONG}, {"prompt": LONG[40:], "temperature": 0.7, "seed": 9}]
    return [{**fields, "ignore_eos": "response_format" not in fields} for fields in asked]


@dataclass(frozen=True, slots=True)
class Wish:
    """One request and what its reader does."""

    fields: dict[str, Any]
    known: int | None  # its place in the catalogue
    durable: bool
    slow: bool  # reads an event only now and then, and keeps few that it has not read
    cancel_after: float | None  # seconds
    think: float = field(default=0.0)  # seconds, before it is asked


def wishes(seed: int) -> Iterator[Wish]:
    """For ever."""
    chance, asked = random.Random(seed), catalogue()
    while True:
        known = chance.randrange(len(asked)) if chance.random() < 0.7 else None
        text = " ".join(chance.choices(WORDS, k=int(chance.expovariate(1 / 60)) + 4))
        fields = dict(asked[known]) if known is not None else {"prompt": text, **chance.choice(SAMPLING)}
        fields |= {**chance.choice(DRAFTS), "max_tokens": chance.randint(1, MOST_TOKENS)}
        fields["priority"] = chance.choice((0, 0, 0, 0, 1, -1, 5))
        if chance.random() < 0.1:
            fields["deadline_ms"] = int(10 ** chance.uniform(0, 4))
        durable = chance.random() < 0.5
        yield Wish(
            fields,
            known,
            durable=durable,
            slow=durable and chance.random() < 0.15,
            cancel_after=10 ** chance.uniform(-3, 0.8) if chance.random() < 0.2 else None,
            think=chance.expovariate(2.0),
        )
