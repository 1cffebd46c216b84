"""One request inside the decoder: its tokens, and how far the pipeline has been told of them."""

from dataclasses import dataclass, field

import numpy as np

from engine.contract.ids import RequestId
from engine.contract.messages import IntArray
from engine.decoder.answer import Answer


def _no_blocks() -> IntArray:
    return np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt and accepted tokens of one request.

    `sent` tokens are in the pipeline's caches or on their way there. A sequence with `sent < len(tokens)` has work:
    prompt, replay after a lost worker and the next token are all the same thing, tokens[sent:].
    """

    id: RequestId
    tokens: list[int]
    prompt_length: int
    limit: int  # tokens at most, prompt included
    answer: Answer
    arrived: float  # seconds, on the decoder's clock
    sent: int = 0
    slot: int = -1
    blocks: IntArray = field(default_factory=_no_blocks)
    last_step: int = -1  # the step that carried its latest row: oldest first is fair
    admitted: float | None = None
    first_token: float | None = None
    idle_losses: int = 0  # epochs lost since its last accepted token: the mark of a poison prompt

    @property
    def remaining(self) -> int:
        """Tokens the pipeline has not been told of."""
        return len(self.tokens) - self.sent

    def forget(self) -> None:
        """Nothing is in any cache any more: everything is sent again."""
        self.sent, self.slot, self.last_step = 0, -1, -1
        self.blocks = _no_blocks()
        self.idle_losses += 1
