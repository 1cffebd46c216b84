"""What the caches of one epoch hold for whom: blocks and slots, and what a new sequence finds there already."""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Final

from engine.contract.control import PrefixCache
from engine.contract.drafts import common_prefix
from engine.decoder.batching import StepLimits
from engine.decoder.sequence import Lead, Sequence
from engine.decoder.slots import LEAST_SHARED, SlotPool
from engine.kv.blocks import BlockPool, blocks_for

UNREAD: Final = 2  # tokens at the end of a sequence that are always computed: a row of its own for the next token


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the pipeline of this epoch can do: the intersection of its stages' capabilities."""

    blocks: int  # 0: the pipeline keeps no blocks
    slots: int  # sequences that may run at once
    limits: StepLimits
    stateful: bool = False  # some stage keeps a state per slot
    window: int = 0  # tokens that a slot keeps of a longer sequence; 0: all
    stages: int = 1
    draft_core: bool = False  # a draft model takes no time from any stage
    adaptive: bool = False  # steps in flight follow what is measured, one per stage at least; else as the limits say


@dataclass(slots=True)
class ReuseCount:
    """How often the caches were of use, since start."""

    lookups: int = 0
    hits: int = 0
    tokens: int = 0

    def add(self, tokens: int) -> None:
        """A sequence was admitted, with so many tokens that need not be computed."""
        self.lookups += 1
        self.hits += tokens > 0
        self.tokens += tokens


@dataclass(slots=True)
class CacheTables:
    """Bookkeeping of one epoch; a new one starts with nothing."""

    pool: BlockPool = field(default_factory=lambda: BlockPool(0, 0))
    slots: SlotPool = field(default_factory=lambda: SlotPool(0, keeps=False))
    shares: bool = False  # blocks may be known; not beside stages that keep a state per slot, which would lack theirs
    rewritten: int = 0  # rows never start in front of this position only to be long enough

    @classmethod
    def of(cls, capacity: Capacity) -> "CacheTables":
        """Empty tables for a pipeline."""
        limits = capacity.limits
        return cls(
            BlockPool(capacity.blocks, limits.block_size),
            SlotPool(capacity.slots, keeps=capacity.stateful and not limits.block_size, window=capacity.window),
            shares=not capacity.stateful,
            rewritten=limits.context_length - limits.min_row_tokens,
        )

    def admit(self, sequence: Sequence, running: Items[Sequence]) -> int | None:
        """Give a sequence a slot and blocks for its tokens; how many of them need no computing, None: no room.

        A block for each running sequence is left over, so that who comes in is not thrown out at once.
        """
        pool, count = self.pool, len(sequence.tokens)
        places = pool.index.match(sequence.tokens, count - UNREAD)
        missing = blocks_for(count, pool.block_size) - len(places)
        reserve = len(running) if pool.block_size else 0
        if not self.slots.free or not pool.can_allocate(missing + reserve, beside=(place.block for place in places)):
            return None
        found = sequence.table.share(pool, places)
        sequence.table.grow(pool, count)
        whole = self.slots.whole
        held = ((other.slot, other.tokens[: other.confirmed]) for other in running if whole(other.sent))
        place = self.slots.take(sequence.tokens, count - UNREAD, held)
        sequence.slot = place.slot
        sequence.sent = sequence.confirmed = max(found, place.held)
        return sequence.sent

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Blocks for that many tokens; False when the pool has too few."""
        return sequence.table.grow(self.pool, tokens)

    def confirm(self, sequence: Sequence, end: int) -> None:
        """A step's result is there: positions up to `end` were computed, as far as their tokens are certain."""
        sequence.confirmed = max(sequence.confirmed, min(end, len(sequence.tokens) - 1))
        if self.shares:
            sequence.table.register(self.pool, sequence.tokens, min(sequence.confirmed, self.rewritten))

    def release(self, sequence: Sequence) -> None:
        """A sequence leaves its slot and blocks; what is known of them stays while nobody needs the room."""
        sequence.table.clear(self.pool)
        self.slots.give_back(sequence.slot, sequence.tokens[: sequence.confirmed])
        sequence.slot = -1

    def waits(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        """Whether a waiting sequence should let another one read the beginning that both share.

        It does so for one leader, until that one has read it or runs no more: a bounded time, and never for nothing.
        """
        if sequence.lead is None:
            size, most = self.pool.block_size, len(sequence.tokens) - UNREAD
            if not (self.shares if size else self.slots.keeps):
                return False
            found = len(self.pool.index.match(sequence.tokens, most)) * size
            sequence.lead = choose_lead(sequence, running, found=found, grain=size or 1, least=size or LEAST_SHARED)
        lead = sequence.lead
        return lead is not None and lead.sequence.slot >= 0 and lead.sequence.confirmed < lead.tokens

    def figures(self, reuse: ReuseCount) -> PrefixCache:
        """For the decoder's heartbeat."""
        return PrefixCache(
            lookups=reuse.lookups,
            hits=reuse.hits,
            saved_tokens=reuse.tokens,
            cached_blocks=self.pool.cached,
            cached_slots=self.slots.cached,
        )


def choose_lead(sequence: Sequence, running: Iterable[Sequence], *, found: int, grain: int, least: int) -> Lead | None:
    """Who is reading the longest beginning that a waiting sequence shares; None when it is not worth waiting.

    Of that beginning whole `grain`s of tokens count, and `least` of them must be neither `found` in the caches nor
    computed already.
    """
    best: Lead | None = None
    tokens, most = sequence.tokens, len(sequence.tokens) - UNREAD
    for other in running:
        needed = max(found, other.confirmed) + least
        if needed > min(most, len(other.tokens)) or tokens[needed - 1] != other.tokens[needed - 1]:
            continue  # most part here, at the price of one comparison
        shared = min(common_prefix(tokens, other.tokens), most) // grain * grain
        if shared >= needed and (best is None or shared > best.tokens):
            best = Lead(other, shared)
    return best


def seniority(sequence: Sequence) -> tuple[int, int]:
    """The least is preempted first: of the lowest priority the youngest."""
    return sequence.priority, -sequence.serial
