"""Samples of the served model have the exact distribution, with drafts and without (B08).

For each kind of sampling the joint distribution of the first tokens is computed from logits of the same shards in this
process, filters by their definition; then the pipeline is asked with many seeds. Seeds are fixed, so what passes once
always does: a right implementation fails with a probability below 1e-5 when tokens or seeds change.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from engine.client.client import Client
from engine.contract.manifest import load_manifest
from engine.contract.prompt import FinalEvent
from engine.decoder.tokenizer import load_tokenizer
from engine.transport.nats import NatsTransport
from engine.transport.subjects import Subjects
from stages.chain import prefill
from tests.conftest import Shards
from tests.system.distribution import Doubles, Said, Tree, deviations, probabilities
from tests.system.references import PagedChain
from tests.system.running import Running

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.xdist_group("drafting")]
PROMPT = "ha ha ha"  # what has been said is likely to be said again: penalties have something to change
LAUGH, SHOUT, COMMA = 421, 17, 28  # " ha", "!", ","
TOKENS, DRAWS, AT_ONCE = 4, 150, 48
TOO_FAR = 4.3  # standard deviations: a right implementation is that far off once in 100,000 times
KINDS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.9},
    "top-k": {"temperature": 1.2, "top_k": 6},
    "top-p": {"temperature": 1.0, "top_p": 0.8},
    "min-p": {"temperature": 1.1, "min_p": 0.02},
    "repetition": {"temperature": 0.8, "repetition_penalty": 1.05},
    "presence and frequency": {"temperature": 0.8, "presence_penalty": 0.6, "frequency_penalty": 0.8},
    "bias": {"temperature": 0.8, "logit_bias": {str(LAUGH): -1.0, str(SHOUT): 1.5, str(COMMA): -100.0}},
    "two filters and a penalty": {"temperature": 1.3, "top_k": 12, "top_p": 0.85, "repetition_penalty": 1.03},
}
DRAFTS: dict[str, dict[str, Any]] = {"off": {"draft": "none"}, "on": {"draft": "model", "draft_tokens": 2}}
Logits = Callable[[Said], Doubles]


def seeds(kind: str, drafts: str) -> range:
    """Others for each: with the same seeds the answers would be the same, and the second test no test."""
    first = 1000 * (1 + list(KINDS).index(kind)) + 500 * list(DRAFTS).index(drafts)
    return range(first, first + DRAWS)


@pytest.fixture(scope="module")
def prompt(shards: Shards) -> list[int]:
    return load_tokenizer(shards(2), load_manifest(shards(2))).encode(PROMPT, special=True)


@pytest.fixture(scope="module")
def logits(paged: PagedChain, prompt: list[int]) -> Logits:
    """Of the token behind the prompt and the beginning of an answer; the same two shards, in this process."""
    return cache(lambda said: prefill(paged(2), 0, [*prompt, *said])[0].astype(np.float64))


async def answer(client: Client, fields: dict[str, Any]) -> FinalEvent:
    async for event in client.generate_now(prompt=PROMPT, max_tokens=TOKENS, ignore_eos=True, **fields):
        if isinstance(event, FinalEvent):
            assert event.error is None
            return event
    raise AssertionError("no final event")


def ask(here: Running, asked: Sequence[dict[str, Any]], at_once: int = AT_ONCE) -> list[FinalEvent]:
    async def all_of_them(transport: NatsTransport, subjects: Subjects) -> list[FinalEvent]:
        client, places = Client(transport, subjects), asyncio.Semaphore(at_once)

        async def one(fields: dict[str, Any]) -> FinalEvent:
            async with places:
                return await answer(client, fields)

        return list(await asyncio.gather(*map(one, asked)))

    return here.do(all_of_them)


@pytest.fixture(scope="module")
def answers(drafting: Running) -> dict[tuple[str, str], list[FinalEvent]]:
    """All of them, by kind and drafts; kinds are mixed in every step."""
    ways = [(kind, drafts, seed) for kind in KINDS for drafts in DRAFTS for seed in seeds(kind, drafts)]
    np.random.default_rng(7).shuffle(ways)
    ways = [(str(kind), str(drafts), int(seed)) for kind, drafts, seed in ways]
    finals = ask(drafting, [{**KINDS[kind], **DRAFTS[drafts], "seed": seed} for kind, drafts, seed in ways])
    found: dict[tuple[str, str], list[FinalEvent]] = {}
    for (kind, drafts, _), final in sorted(zip(ways, finals, strict=True), key=lambda pair: pair[0]):
        found.setdefault((kind, drafts), []).append(final)
    return found


@pytest.fixture(scope="module")
def trees(logits: Logits, prompt: list[int]) -> dict[str, Tree]:
    def tree(how: dict[str, Any]) -> Tree:
        return Tree(lambda said: probabilities(logits(said), how, prompt, said), TOKENS, DRAWS)

    return {kind: tree(how) for kind, how in KINDS.items()}


@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_tokens_have_their_joint_distribution(
    answers: dict[tuple[str, str], list[FinalEvent]], trees: dict[str, Tree], kind: str, drafts: str
) -> None:
    chi_square, freedom = trees[kind].statistic([final.ids for final in answers[kind, drafts]])
    assert freedom >= 3
    assert deviations(chi_square, freedom) < TOO_FAR


def test_all_kinds_together_show_what_is_too_small_for_one(
    answers: dict[tuple[str, str], list[FinalEvent]], trees: dict[str, Tree], capsys: pytest.CaptureFixture[str]
) -> None:
    found = {way: trees[way[0]].statistic([final.ids for final in finals]) for way, finals in answers.items()}
    chi_square, freedom = (sum(part) for part in zip(*found.values(), strict=True))
    with capsys.disabled():
        each = ", ".join(f"{kind} {drafts} {deviations(*value):+.1f}" for (kind, drafts), value in found.items())
        print(f"\nchi-square {chi_square:.0f} of {freedom} cells, {deviations(chi_square, freedom):+.1f} ({each})")
    assert deviations(chi_square, int(freedom)) < TOO_FAR
    usage = [final.usage for (_, drafts), finals in answers.items() for final in finals if drafts == "on"]
    assert sum(one.accepted_tokens for one in usage) > 0.3 * sum(one.drafted_tokens for one in usage) > 0


def test_a_seed_gives_the_same_tokens_with_other_drafts_and_alone(
    drafting: Running, answers: dict[tuple[str, str], list[FinalEvent]]
) -> None:
    ways = [(kind, drafts, i) for kind in KINDS for drafts in DRAFTS for i in range(8)]
    other = {"off": DRAFTS["on"], "on": DRAFTS["off"]}
    asked = [{**KINDS[kind], **other[drafts], "seed": seeds(kind, drafts)[i]} for kind, drafts, i in ways]
    first = [answers[kind, drafts][i].ids for kind, drafts, i in ways]
    assert [final.ids for final in ask(drafting, asked)] == first
    assert [final.ids for final in ask(drafting, asked[::8], at_once=1)] == first[::8]
