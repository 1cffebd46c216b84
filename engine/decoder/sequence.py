"""One request inside the decoder: its tokens, its drafts, and how far the pipeline has been told of them."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from engine.contract.drafts import MAX_DRAFT_TOKENS
from engine.contract.ids import RequestId
from engine.contract.sampling import GREEDY, Sampling
from engine.decoder.answer import Answer, Delta
from engine.decoder.lookup import LookupIndex
from engine.decoder.speculation import DraftState
from engine.decoder.verification import Verdict
from engine.kv.table import BlockTable

CHOICE_MARK: Final = "#"  # in no request's id


def choice_id(request: RequestId, choice: int) -> RequestId:
    """The id of one choice's sequence."""
    return RequestId(f"{request}{CHOICE_MARK}{choice}") if choice else request


@dataclass(frozen=True, slots=True)
class Lead:
    """A running sequence that reads the first `tokens` of another one too."""

    sequence: "Sequence"
    tokens: int


class Grammar(Protocol):
    """What an answer must look like (engine.decoder.constraint)."""

    def masks(self, drafts: Items[int]) -> npt.NDArray[np.uint32]:
        """Which tokens may come after each of the drafts, uint32 (len(drafts) + 1, words)."""
        ...

    def filter(self, drafts: Items[int]) -> tuple[int, ...]:
        """The longest beginning of `drafts` that is allowed."""
        ...

    def forced(self, limit: int) -> tuple[int, ...]:
        """Up to `limit` tokens that are certain to come next; often none."""
        ...

    def accept(self, tokens: Items[int]) -> None:
        """These tokens are certain."""
        ...

    @property
    def error(self) -> str:
        """Why the answer cannot be kept to it any longer; "" while it can."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt, accepted tokens and drafts of one request, or of one of its `n` choices.

    `tokens` are certain; `tail` is drafted behind them and assumed to hold until a result says otherwise. `sent` of
    both together are in the pipeline's caches or on their way there. Prompt, replay after a lost worker, the next
    token, its drafts and a window sent ahead of its time are all the same thing: what lies behind `sent`.
    """

    id: RequestId  # of the sequence: a further choice's is its request's and a number
    tokens: list[int]
    prompt_length: int
    limit: int  # tokens at most, prompt included
    answer: Answer
    arrived: float  # seconds, on the decoder's clock
    choice: int = 0  # of its request
    sampling: Sampling = GREEDY
    constraint: Grammar | None = None
    trace: str = ""  # context of its request's span
    priority: int = 0
    deadline: float | None = None  # same clock: when its answer must have begun
    drafts: DraftState = field(default_factory=lambda: DraftState(()))
    index: LookupIndex = field(default_factory=LookupIndex)
    tail: list[int] = field(default_factory=list[int])
    drafting: Literal["open", "asked", "decided"] = "open"  # of the window to be sent next
    asked_at: tuple[int, int] = (0, 0)  # branch and length when the draft model was asked
    sent: int = 0
    flying: int = 0  # rows under way whose results are wanted
    branch: int = 0  # raised when a draft fails: rows of an older branch are stale
    slot: int = -1
    table: BlockTable = field(default_factory=BlockTable)
    confirmed: int = 0  # leading tokens whose computation is over
    cached: int = 0  # tokens of the prompt that were never computed for it
    serial: int = 0  # of its arrival
    lead: Lead | None = None  # whom it lets read first, chosen once while it waits
    last_step: int = -1  # the step that carried its latest row: oldest first is fair
    admitted: float | None = None
    first_token: float | None = None
    latest_token: float | None = None  # when it came
    idle_losses: int = 0  # epochs lost since its last accepted token: the mark of a poison prompt
    _distinct: tuple[int, ...] = ()

    @property
    def request(self) -> RequestId:
        """Whom it answers."""
        return RequestId(self.id.partition(CHOICE_MARK)[0])

    @property
    def length(self) -> int:
        """Tokens and drafts."""
        return len(self.tokens) + len(self.tail)

    def shorten(self, limit: int) -> None:
        """End it at so many tokens, prompt included."""
        self.limit = limit
        self.answer.rules = replace(self.answer.rules, max_tokens=limit - self.prompt_length)

    @property
    def behind(self) -> int:
        """Certain tokens that the pipeline has not been told of; not above 0 when it was told of drafts too."""
        return len(self.tokens) - self.sent

    @property
    def prefilling(self) -> bool:
        """Whether more than the next token's row is missing."""
        return self.behind > 1

    @property
    def answering(self) -> bool:
        """Whether everything but the latest token is in the caches, and something was answered."""
        return self.behind <= 1 and len(self.tokens) > self.prompt_length

    @property
    def ready(self) -> bool:
        """Whether its next row may be sent."""
        if self.prefilling:
            return True
        return self.at_rest and (self.drafting == "decided" or not self.drafts.sources or not self.answering)

    @property
    def at_rest(self) -> bool:
        """Whether only the latest token is missing, and nothing is under way that could change it."""
        return self.behind == 1 and not self.flying

    @property
    def awaits_drafts(self) -> bool:
        """Whether its next row only waits for somebody to draft."""
        return self.at_rest and not self.ready

    @property
    def ready_ahead(self) -> bool:
        """Whether it has drafts that may be sent before the results of earlier ones are there."""
        return self.flying > 0 and self.sent < self.length and self.drafting == "decided"

    @property
    def room(self) -> int:
        """Drafts that still make sense: the last token of an answer is never followed."""
        ended = bool(self.tail) and self.tail[-1] in self.answer.rules.eos_ids
        return 0 if ended else max(self.limit - 1 - self.length, 0)

    def distinct_prompt(self) -> tuple[int, ...]:
        """Tokens of the prompt, each once."""
        if not self._distinct:
            self._distinct = tuple(dict.fromkeys(self.tokens[: self.prompt_length]))
        return self._distinct

    def stream(self, start: int, end: int) -> list[int]:
        """Tokens, then drafts, of positions [start, end)."""
        certain = len(self.tokens)
        if end <= certain:
            return self.tokens[start:end]
        return self.tokens[start:] + self.tail[max(start - certain, 0) : end - certain]

    def extend_by_grammar(self) -> bool:
        """Take what the grammar leaves no choice about as drafts; whether there was any."""
        if self.constraint is None or self.tail:
            return False
        self.extend_tail(self.constraint.forced(min(self.room, MAX_DRAFT_TOKENS)))
        return bool(self.tail)

    def extend_tail(self, drafts: Items[int]) -> None:
        """More drafts behind those that are there: allowed ones, and none behind an end-of-sequence token."""
        if self.constraint is not None:
            drafts = self.constraint.filter([*self.tail, *drafts])[len(self.tail) :]
        for token in drafts[: self.room]:
            self.tail.append(token)
            if token in self.answer.rules.eos_ids:
                break

    def take(self, verdict: Verdict, delta: Delta) -> tuple[int, int]:
        """A verify row came back; `delta` is what the answer took of the verdict's tokens.

        Returns how many drafts hold, and how many were compared up to where the answer ends.
        """
        taken = len(delta.ids)
        whole = taken == len(verdict.tokens)
        accepted = min(verdict.accepted, taken)
        checked = verdict.checked if whole else accepted
        self.drafts.observe(accepted, checked, taken)
        self.tokens.extend(delta.ids)
        if self.constraint is not None:
            self.constraint.accept(delta.ids)
        self.idle_losses = 0
        if verdict.onward:
            self.flying -= 1
            self.tail = self.tail[len(verdict.tokens) :]
        else:
            self.flying = 0
            self.branch += 1
            self.tail = []
            self.sent = len(self.tokens) - 1
        guessed = verdict.onward and verdict.accepted == len(verdict.tokens)  # and nothing worth drafting behind it
        if not self.tail and self.drafting == "decided" and not guessed:
            self.drafting = "open"
        return accepted, checked

    def rewind(self) -> None:
        """It holds no cache any more: everything is sent again, and what is under way is stale."""
        self.sent, self.confirmed, self.slot, self.last_step, self.flying = 0, 0, -1, -1, 0
        self.tail, self.drafting = [], "open"
        self.branch += 1
        self.table = BlockTable()

    def forget(self) -> None:
        """The epoch is lost, and every cache with it."""
        self.rewind()
        self.lead = None
        self.idle_losses += 1
