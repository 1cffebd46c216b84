"""An answer that outlives its decoder: what was told is kept, and asked to be gone on with where another one serves."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final

from engine.client.api import Shardline
from engine.contract.errors import BrokerError, ErrorCode, PromptError
from engine.contract.logprobs import TokenLogprob
from engine.contract.noise import seed_of
from engine.contract.prompt import Event, TokenEvent
from engine.contract.told import Told
from engine.gateway.calls import Call, LostError
from engine.gateway.errors import unavailable
from engine.gateway.models import Models

FRUITLESS: Final = 7  # in a row without one new token; a lost decoder counts twice, for it may be the prompt's doing
PAUSE_SECONDS: Final = 0.2  # before it is asked again, twice as long each time; over a minute in all
LATER: Final = (ErrorCode.OVERLOADED, ErrorCode.UNAVAILABLE)  # refusals that pass


@dataclass(slots=True)
class Kept:
    """What was told so far."""

    ids: dict[int, list[int]] = field(default_factory=dict[int, list[int]])  # by choice
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict[int, list[TokenLogprob]])
    numerics: list[str] = field(default_factory=list[str])

    def add(self, event: TokenEvent) -> None:
        """Take in some more."""
        self.ids.setdefault(event.index, []).extend(event.ids)
        self.logprobs.setdefault(event.index, []).extend(event.logprobs)
        self.numerics.extend(event.numerics)

    def again(self, fields: Mapping[str, Any], attempt: int) -> dict[str, Any]:
        """Fields that go on behind it, under an id of their own: the decoder that was lost may still know the other."""
        name: str = fields["id"]
        told = [Told(at, tuple(ids), tuple(self.logprobs[at])) for at, ids in self.ids.items()]
        told[:1] = [replace(one, numerics=tuple(self.numerics)) for one in told[:1]]
        return {"seed": seed_of(name), **fields, "id": f"{name}-{attempt}", "told": [one.as_fields() for one in told]}


async def answered(pipeline: Shardline, models: Models, call: Call, fields: Mapping[str, Any]) -> AsyncGenerator[Event]:
    """Events of an answer; a decoder or a link that is lost in the middle of it is only a pause.

    Raises PromptError; BrokerError where nobody serves at the beginning; ApiError once `call` was given up.
    """
    kept, attempt, fruitless = Kept(), 0, 0
    call.place = models.place(call.model)
    while True:
        asked = kept.again(fields, attempt) if attempt else dict(fields)
        try:
            async with aclosing(pipeline.stream(**asked)) as events:
                while (event := await call.next(events)) is not None:
                    if isinstance(event, TokenEvent):
                        fruitless = 0
                        kept.add(event)
                    yield event
                return
        except (LostError, BrokerError, PromptError) as error:
            fruitless += 2 if isinstance(error, LostError) else 1
            _check_worth(error, fruitless, begun=bool(attempt or kept.ids))
        await asyncio.sleep(PAUSE_SECONDS * 2**fruitless)  # who came back at once has not said so yet
        await models.served(call)
        attempt += 1


def _check_worth(error: Exception, fruitless: int, *, begun: bool) -> None:
    """Whether to ask again after an error. Raises it, or ApiError, when not."""
    if fruitless >= FRUITLESS:
        raise unavailable(f"the answer was given up: {error}, again and again") from error
    if isinstance(error, BrokerError) and not begun:
        raise error
    if isinstance(error, PromptError) and not (begun and error.code in LATER):
        raise error
