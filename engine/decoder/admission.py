"""From a prompt's bytes to a sequence, or to the reason why not. No I/O."""

import time
from dataclasses import dataclass, replace
from typing import Final

from engine.contract.errors import ErrorCode, PromptError
from engine.contract.ids import RequestId
from engine.contract.manifest import Manifest
from engine.contract.noise import mix, seed_of
from engine.contract.prompt import PromptRequest
from engine.contract.sampling import Sampling, sampling_from
from engine.decoder.answer import Answer, EndRules
from engine.decoder.constraint import Constraint, ConstraintCompiler
from engine.decoder.sequence import Sequence, choice_id
from engine.decoder.speculation import DraftState
from engine.decoder.tokenizer import Tokenizer
from engine.decoder.tools import Dialect, Messages, call_format, dialect_of, tell

CONTEXT_OF_TEXT: Final = 8  # last tokens of the prompt that an answer's first text may depend on


@dataclass(frozen=True, slots=True)
class Admission:
    """Turns requests into sequences for one model."""

    manifest: Manifest
    tokenizer: Tokenizer
    default_max_tokens: int
    sources: tuple[str, ...] = ("lookup",)  # of drafts that this decoder has, in order of preference
    draft_tokens: int | None = None  # per window, where a request does not say; None: as many as pay
    compiler: ConstraintCompiler | None = None  # of grammars; None: every answer is free text

    def choices(self, request: PromptRequest, request_id: RequestId, arrived: float) -> list[Sequence]:
        """Tokenize and check: one sequence per answer. Raises PromptError. Slow: not for the event loop."""
        self._check_told(request)
        tokens = self._tokenize(request)
        sampling = self._sampling(request, request_id)
        return [self._sequence(request, request_id, arrived, list(tokens), sampling, i) for i in range(request.n)]

    def _check_told(self, request: PromptRequest) -> None:
        for one in request.told:
            if one.index not in range(request.n) or not all(0 <= token < self.manifest.vocabulary for token in one.ids):
                message = "'told' names a choice or a token that is not there"
                raise PromptError(ErrorCode.INVALID_PROMPT, message, field="told")

    def _sampling(self, request: PromptRequest, request_id: RequestId) -> Sampling:
        sampling = sampling_from(request.sampling, seed_of(request_id))
        if sampling.logit_bias and (most := max(sampling.logit_bias)) >= self.manifest.vocabulary:
            raise PromptError(
                ErrorCode.INVALID_PROMPT,
                f"'logit_bias' names token {most}; this model has {self.manifest.vocabulary} tokens",
                field="logit_bias",
            )
        return sampling

    def _sequence(
        self,
        request: PromptRequest,
        request_id: RequestId,
        arrived: float,
        tokens: list[int],
        sampling: Sampling,
        choice: int,
    ) -> Sequence:
        context = self.manifest.context_length
        if len(tokens) >= context:
            raise PromptError(
                ErrorCode.PROMPT_TOO_LONG,
                f"the prompt has {len(tokens)} tokens; with room for an answer this model takes {context - 1}",
            )
        room = context - len(tokens)
        max_tokens = min(request.max_tokens or self.default_max_tokens, room)
        rules = EndRules(
            eos_ids=frozenset() if request.ignore_eos else frozenset(self.manifest.eos_ids),
            max_tokens=max_tokens,
            stop=request.stop,
        )
        wants_logprobs = sampling.logprobs is not None
        sequence = Sequence(
            id=choice_id(request_id, choice),
            tokens=tokens,
            prompt_length=len(tokens),
            limit=len(tokens) + max_tokens,
            answer=Answer(
                rules,
                self.tokenizer.stream(tokens[-CONTEXT_OF_TEXT:]),
                self.tokenizer.pieces() if wants_logprobs else None,
            ),
            arrived=arrived,
            choice=choice,
            sampling=replace(sampling, seed=mix(sampling.seed + choice)) if choice else sampling,
            constraint=self._constraint(request),
            priority=request.priority,
            deadline=None if request.deadline_ms is None else arrived + request.deadline_ms / 1e3,
            drafts=self._drafts(request),
        )
        if "lookup" in sequence.drafts.sources:
            sequence.index.take(tokens)
        return sequence

    def _constraint(self, request: PromptRequest) -> Constraint | None:
        wanted = request.response_format or call_format(request, self._dialect)
        if wanted is None:
            return None
        if self.compiler is None:
            name = "tool_choice" if request.response_format is None else "response_format"
            raise PromptError(ErrorCode.INVALID_PROMPT, f"{name!r} is not served by this decoder", field=name)
        return self.compiler.constraint(wanted)

    def _drafts(self, request: PromptRequest) -> DraftState:
        """What was asked for where it is there, else the next best; `draft_tokens` 0 means none."""
        fixed = self.draft_tokens if request.draft_tokens is None else request.draft_tokens
        if request.draft == "none" or fixed == 0:
            return DraftState(())
        if request.draft == "auto":
            return DraftState(self.sources, fixed)
        order = ("model", "lookup") if request.draft == "model" else ("lookup",)
        return DraftState(tuple(name for name in order if name in self.sources)[:1], fixed)

    def _tokenize(self, request: PromptRequest) -> list[int]:
        if request.messages is None:
            tokens = self.tokenizer.encode(request.prompt or "", special=True)
        else:
            try:
                text = self._chat(request, request.messages)
            except ValueError as error:
                raise PromptError(ErrorCode.INVALID_PROMPT, str(error), field="messages") from error
            tokens = self.tokenizer.encode(text, special=False)
        if not tokens:
            raise PromptError(ErrorCode.INVALID_PROMPT, "the prompt has no tokens")
        return tokens

    @property
    def _dialect(self) -> Dialect:
        return dialect_of(self.tokenizer.chat_template)

    def _chat(self, request: PromptRequest, messages: Messages) -> str:
        """The prompt of a chat. Raises ValueError."""
        tools = () if request.tool_choice.kind == "none" else request.tools
        if self._dialect == "told":
            return self.tokenizer.chat(tell(messages, tools))
        return self.tokenizer.chat(messages, [tool.as_fields() for tool in tools])


def now() -> float:
    """The decoder's clock, in seconds."""
    return time.monotonic()
