"""The numbers that a static shard is made for, once and for all: in the manifest, chosen at export."""

from dataclasses import dataclass
from typing import Final

from engine.contract.errors import UsageError

LEAST_CONTEXT: Final = 16
REWIND: Final = 64  # tokens that a sequence which slides may take back: rejected drafts of all its windows in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticLimits:
    """Of each of its sequences, and of what one inference takes."""

    context: int  # tokens that a sequence sees at most
    slots: int  # sequences
    verify_tokens: int  # of each slot in one inference of the first graph: a token and its drafts
    prefill_chunk: int  # tokens of one inference of the second graph, all of one sequence; 0: no second graph
    sinks: int = 0  # first tokens that stay in sight of a sequence which outgrows `context`; 0: it ends there

    @property
    def cells(self) -> int:
        """Columns of the KV cache that each slot has."""
        return self.context + (REWIND if self.sinks else 0)

    @property
    def columns(self) -> int:
        """Columns of the KV cache."""
        return self.slots * self.cells

    @property
    def lanes(self) -> int:
        """Tokens of one inference of the first graph."""
        return self.slots * self.verify_tokens

    def check(self, model_context: int) -> None:
        """Raises UsageError for numbers that fit neither each other nor a model of that context length."""
        if not LEAST_CONTEXT <= self.context <= model_context:
            raise UsageError(f"--context {self.context}: this model takes {LEAST_CONTEXT} to {model_context}")
        if self.slots < 1 or not 1 <= self.verify_tokens <= self.context:
            raise UsageError(f"--slots {self.slots} and --verify-tokens {self.verify_tokens} must be 1 or more")
        if not 0 <= self.sinks <= self.context // 2:
            raise UsageError(f"--sinks {self.sinks}: at most half of --context {self.context} may stay for ever")
        most = self.context - self.sinks
        if self.prefill_chunk and not self.verify_tokens < self.prefill_chunk <= most:
            raise UsageError(
                f"--prefill-chunk {self.prefill_chunk}: more than --verify-tokens ({self.verify_tokens}), at most "
                f"{most} (the context less its sinks), or 0 for none"
            )
