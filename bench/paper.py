"""Every table of the paper, what it says as a ratio, and ours: one claim per row of the report.

"Pre-Compiled Pipeline Shards for Distributed LLM Inference on Intel AI PC Fleets", arXiv 2608.19147. Its machines had
Intel GPUs and NPUs and an 8B model; so ratios are held beside each other, never tokens per second.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.estimate import Estimate, estimate, estimate_ratio
from bench.load import KINDS
from bench.record import Results

Ours = Callable[[Results], Estimate]
HOPS_MS = (0, 10, 50, 100)


@dataclass(frozen=True, slots=True)
class Claim:
    """One row."""

    table: str  # label in the paper, or what it is about
    what: str
    theirs: str
    ours: Ours
    unit: str = "times"
    wanted: float | None = None  # ours should reach it; None: nothing to reach
    lower: bool = False  # less is better
    why: str = ""  # it is so


def parity(runner: str, context: int) -> Ours:
    return lambda r: estimate_ratio(
        r.samples(f"parity.{runner}", context=context), r.samples("parity.genai", context=context)
    )


def splits(stages: int) -> Ours:
    return lambda r: estimate_ratio(r.samples("splits", stages=stages), r.samples("splits", stages=1))


def rewind(way: str) -> Ours:
    """What it costs, relative to a row of which nothing is rejected."""

    def ours(r: Results) -> Estimate:
        name = "paged" if way.startswith("paged") else "stateful"
        return estimate_ratio(
            r.samples("rewind", context=72, way=way), r.samples("rewind", context=72, way=f"{name}: nothing rejected")
        )

    return ours


def trim(r: Results) -> Estimate:
    """Milliseconds more than masking."""
    ways = (r.samples("rewind", context=72, way=f"stateful: {way}") for way in ("trim every time", "mask"))
    trimmed, masked = ways
    return estimate([a - b for a, b in zip(trimmed, masked, strict=True)])


def speculation(setting: str, kinds: tuple[str, ...] = KINDS) -> Ours:
    """Mean over kinds of prompts, round by round."""

    def ours(r: Results) -> Estimate:
        ratios = []
        for kind in kinds:
            on = r.samples("speculation.one_node", row=kind, setting=setting)
            off = r.samples("speculation.one_node", row=kind, setting="off")
            ratios.append([a / b for a, b in zip(on, off, strict=True)])
        return estimate(np.mean(ratios, axis=0).tolist())

    return ours


def least_speculation(setting: str) -> Ours:
    """The kind of prompt that gains least."""
    return lambda r: min((speculation(setting, (kind,))(r) for kind in KINDS), key=lambda found: found.middle)


def two_nodes(users: int, setting: str, *, of: str = "whole") -> Ours:
    """Against the whole model's single user, or against another setting with as many users."""

    def ours(r: Results) -> Estimate:
        mine = r.samples("speculation.two_nodes", row=str(users), setting=setting)
        other = {"row": "whole", "setting": ""} if of == "whole" else {"row": of, "setting": "off"}
        return estimate_ratio(mine, r.samples("speculation.two_nodes", **other))

    return ours


def wan(hop_ms: int, way: str) -> Ours:
    return lambda r: estimate_ratio(
        r.samples("wan", hop_ms=hop_ms, way=way), r.samples("wan", hop_ms=hop_ms, way="naive")
    )


def best_wan(hop_ms: int) -> Ours:
    """The better of the two full stacks."""
    ways = ("speculation", "speculation, ahead")
    return lambda r: max((wan(hop_ms, way)(r) for way in ways), key=lambda found: found.middle)


def longer(tokens: int) -> Ours:
    return lambda r: estimate_ratio(
        r.samples("longer", tokens=tokens, setting="on"), r.samples("longer", tokens=tokens, setting="off")
    )


def slots(count: int) -> Ours:
    """Tokens per second of so many slots against one's."""
    return lambda r: estimate(
        [count * one / many for one, many in zip(
            r.samples("static_slots", slots=1), r.samples("static_slots", slots=count), strict=True
        )]
    )  # fmt: skip


def same_token(way: str) -> Ours:
    return lambda r: Estimate(*[float(np.mean(r.samples("activations", way=way, measure="same"))) * 100] * 3, count=1)


def hop(r: Results) -> Estimate:
    return estimate(r.samples("wire.broker", carries="activations, float32", rows=1, hidden=4096))


def users(count: int) -> Ours:
    return lambda r: estimate_ratio(
        r.samples("users.throughput", what="pipeline", size=count, profile="fast"),
        r.samples("users.throughput", what="batching", size=count, profile="fast"),
    )


def batching(r: Results) -> Estimate:
    """Sixteen users of the whole model against one."""
    many, one = (r.samples("users.throughput", what="batching", size=n, profile="fast") for n in (16, 1))
    return estimate_ratio(many, one)


def gateway(r: Results) -> Estimate:
    return estimate_ratio(
        r.samples("gateway.between_tokens", side="gateway"), r.samples("gateway.between_tokens", side="library")
    )


def warm(tokens: int) -> Ours:
    return lambda r: estimate_ratio(
        r.samples("users.ttft", what="cold", size=tokens), r.samples("users.ttft", what="warm", size=tokens)
    )


AVX2 = "a row of several tokens costs more on this core: no AMX, no VNNI (docs/performance.md)"
NO_CORE = f"no core is left for the draft model; {AVX2}"

CLAIMS: tuple[Claim, ...] = (
    Claim("shard_parity", "one shard / whole model, context 40", "1.00", parity("paged", 40), wanted=0.97),
    Claim("shard_parity", "the same, context 1,000", "", parity("paged", 1000), wanted=0.97),
    Claim("shard_parity", "the same on the stateful runner, context 40", "1.00", parity("stateful", 40), wanted=0.95),
    Claim("shard_parity", "the same without the beam_idx Gather", "0.87", parity("stateful, no Gather", 40)),
    Claim("shard_stages", "2 stages in one process / 1", "0.86", splits(2), wanted=0.86),
    Claim("shard_stages", "3 stages / 1", "0.90", splits(3), wanted=0.90),
    Claim("shard_stages", "4 stages / 1", "", splits(4)),
    Claim("trim_cost", "a state trimmed, more than one masked", "47 to 50", trim, unit="ms"),
    Claim("trim_cost", "a row with drafts masked / none rejected", "< 1.01", rewind("stateful: mask"), lower=True,
          wanted=1.01),
    Claim("trim_cost", "a paged row that starts earlier / none rejected", "", rewind("paged: row starts earlier"),
          lower=True, wanted=1.01),
    Claim("spec_lan", "8 kinds of prompts, K = 3", "1.33", speculation("K=3"), wanted=1.5, why=AVX2),
    Claim("spec_lan", "the same, as many drafts as pay", "", speculation("adaptive"), wanted=1.6, why=AVX2),
    Claim("spec_lan", "with lookups too", "", speculation("adaptive + lookup"), wanted=1.6, why=AVX2),
    Claim("spec_lan", "code, K = 3", "1.50", speculation("K=3", ("code",)), wanted=1.5, why=AVX2),
    Claim("spec_lan", "creative, K = 3", "1.11", speculation("K=3", ("creative",)), wanted=1.11, why=AVX2),
    Claim("spec_lan", "the kind that gains least, as many as pay", "1.11 at fixed K", least_speculation("adaptive"),
          wanted=0.95),
    *(Claim("k_sweep", f"one node, K = {k}", "best 1.44 at 7", speculation(f"K={k}")) for k in (1, 2, 5)),
    *(Claim("long generation", f"{n:,} tokens, drafts / none", theirs, longer(n), why=NO_CORE)
      for n, theirs in ((128, ""), (512, "1.56"), (1024, "1.57"))),
    Claim("progression", "two nodes, one user / whole model", "0.67", two_nodes(1, "off"), wanted=0.85),
    Claim("progression", "two nodes, two users / whole model, one", "1.20", two_nodes(2, "off"), wanted=1.6),
    Claim("progression", "two users with drafts / whole model, one", "1.79", two_nodes(2, "on"), wanted=2.5,
          why=NO_CORE),
    Claim("progression", "one user with drafts / whole model", "", two_nodes(1, "on"), wanted=1.6, why=NO_CORE),
    Claim("microbatch", "two users / one user, no drafts", "1.38 to 1.80", two_nodes(2, "off", of="1"), wanted=1.8),
    Claim("breakdown", "a hop through the broker, 4,096 values", "3", hop, unit="ms", lower=True, wanted=3.0),
    Claim("compression", "float16 on the wire: same likeliest token", "no gain in speed", same_token("float16"),
          unit="%"),
    Claim("compression", "8 bits, a scale per token", "corrupt", same_token("8 bits, a scale per token"), unit="%"),
    Claim("compression", "8 bits, a scale per 32 values", "", same_token("8 bits, a scale per 32 values"), unit="%"),
    *(Claim("wan", f"full stack / naive, {ms} ms a hop", theirs, best_wan(ms), wanted=wanted)
      for ms, theirs, wanted in zip(HOPS_MS, ("2.83", "3.78", "3.87", "4.04"), (2.83, 3.78, 3.87, 5.0), strict=True)),
    *(Claim("packed", f"static, {n} slots / one", theirs, slots(n), wanted=float(theirs))
      for n, theirs in ((4, "1.65"), (8, "3.11"), (16, "6.01"))),
    Claim("prefix", "first token of 2,000 tokens, unknown / known", "5.9", warm(2000), wanted=5.9),
    Claim("genai CB", "whole model, 16 users / one", "4.9", batching),
)  # fmt: skip

BEYOND: tuple[Claim, ...] = (
    *(
        Claim("users", f"{n} users / ContinuousBatchingPipeline on one core", "", users(n), wanted=wanted, why=AVX2)
        for n, wanted in ((1, None), (2, None), (4, None), (8, None), (16, 1.6), (32, 1.75))
    ),
    Claim("gateway", "64 streams, time between tokens / client library", "", gateway, wanted=1.1, lower=True),
)

ELSEWHERE: dict[str, str] = {
    "progression_3stage": "three workers need three cores: simulated (bench/simulate.py), not measured",
    "tiber": "a real relay over the internet; here the same delays through a proxy (wan)",
    "gemma_dist": "GPUs; Gemma's shards are proven equal by make test-export, not timed",
    "llama70b": "four machines with GPUs; bench/models.py makes a model of the shape of 8B, which was not served yet",
    "real_wan": "the same method as ours: a proxy that releases bytes later",
}
