"""Sampling through a whole pipeline on the memory transport: the same seed gives the same tokens in every situation."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from engine.contract.errors import PromptError
from engine.contract.noise import mix
from engine.contract.prompt import FinalEvent, TokenEvent
from engine.contract.sampling import Sampling
from engine.contract.side import RowSide
from engine.decoder.drafters import RemoteDrafter, ThreadDrafter
from engine.transport.memory import MemoryTransport
from stages.draft_model import DraftModel
from stages.sampling import Sampler, adjusted
from tests.decoder.local_pipeline import SUBJECTS, ArithmeticShard, Pipeline, next_token, pipeline
from tests.manifests import EOS, VOCABULARY

pytestmark = pytest.mark.pipelines

WARM = {"temperature": 0.15, "seed": 11}  # three tokens of four are the likeliest
PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": 0.1, "frequency_penalty": 0.3}
KINDS: dict[str, dict[str, Any]] = {
    "temperature": WARM,
    "filters": WARM | {"top_k": 40, "top_p": 0.9, "min_p": 0.0001},
    "penalties": WARM | PENALTIES,
    "greedy with penalties": {"temperature": 0, **PENALTIES},
    "bias": WARM | {"logit_bias": {"97": 0.5, "98": -100}},
}
THREAD = ThreadPoolExecutor(1)


def sampled(prompt: str, count: int, fields: dict[str, Any], choice: int = 0) -> tuple[int, ...]:
    """The answer by its definition: one position after the other, without any of the machinery."""
    wanted = dict(fields)
    if "logit_bias" in wanted:
        wanted["logit_bias"] = {int(token): float(bias) for token, bias in wanted["logit_bias"].items()}
    if choice:
        wanted["seed"] = mix(wanted["seed"] + choice)
    how, sampler = Sampling(**wanted), Sampler(np.arange(VOCABULARY))
    read, history = tuple(prompt.encode()), list(prompt.encode())
    for _ in range(count):
        said = history[len(read) :]
        counts = {token: said.count(token) for token in said}
        times = tuple(counts.values())
        side = RowSide(row=0, how=how, position=len(history), read=read, said=tuple(counts), times=times)
        line = np.eye(VOCABULARY, dtype=np.float32)[next_token(history)]
        history.append(sampler.draw(adjusted(line, side, 0), how, len(history)))
        if history[-1] == EOS:
            break
    return tuple(history[len(read) :])


def draft_model() -> DraftModel:
    return DraftModel(ArithmeticShard(last=True), vocabulary=VOCABULARY)


def run(test: Callable[[Pipeline], Awaitable[None]], stages: int = 2, *, drafts: bool = True) -> None:
    async def main() -> None:
        async with pipeline(stages, whole=False) as here:
            if drafts:
                here.draft_with(lambda: ThreadDrafter(draft_model().propose, THREAD), "lookup", "model")
            await here.start()
            await test(here)

    asyncio.run(main())


PROMPTS = ("hello", "a", "What is the capital of Japan?", "abcabcabcabcabcabc")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stages", [1, 3])
def test_answers_are_those_of_the_definition_with_any_drafts_and_beside_any_others(kind: str, stages: int) -> None:
    """B07, B08, B10, B13, D46."""
    fields = KINDS[kind]
    wanted = [sampled(prompt, 40, fields) for prompt in PROMPTS]

    async def test(here: Pipeline) -> None:
        for drafts in ({"draft": "none"}, {"draft_tokens": 1}, {"draft_tokens": 5}, {"draft": "lookup"}, {}):
            asked = [here.client.complete(prompt=p, max_tokens=40, **fields, **drafts) for p in PROMPTS]
            finals = await asyncio.gather(*asked)
            assert [final.ids for final in finals] == wanted
        alone = await here.client.complete(prompt=PROMPTS[0], max_tokens=40, draft_tokens=2, **fields)
        assert alone.ids == wanted[0]

    run(test, stages)


def test_a_draft_that_samples_with_the_same_noise_agrees_with_an_equal_target() -> None:
    async def test(here: Pipeline) -> None:
        final = await here.client.complete(prompt="hello", max_tokens=40, draft="model", draft_tokens=3, **WARM)
        assert final.usage.accepted_tokens == final.usage.drafted_tokens > 20

    run(test)


def test_a_draft_model_elsewhere_samples_too() -> None:
    async def main() -> None:
        async with pipeline(2, whole=False) as here:
            here.draft_with(lambda: RemoteDrafter(MemoryTransport(here.broker), SUBJECTS.draft), "model")
            await here.start_draft_worker(draft_model())
            await here.start()
            final = await here.client.complete(prompt="hello", max_tokens=40, draft_tokens=3, **WARM)
            assert final.ids == sampled("hello", 40, WARM)
            assert final.usage.accepted_tokens == final.usage.drafted_tokens > 20

    asyncio.run(main())


@pytest.mark.parametrize("lost", [0, 1])
def test_a_stage_lost_on_the_way_changes_no_token(lost: int) -> None:
    async def main() -> None:
        async with pipeline(2, whole=False) as here:
            workers = await here.start()
            events = here.client.generate(prompt="hello", max_tokens=60, **WARM, **PENALTIES)
            first = await anext(events)
            await here.kill(workers[lost])
            await here.start_worker(lost)
            *_, final = [first] + [event async for event in events]
            assert final.ids == sampled("hello", 60, WARM | PENALTIES)
            assert here.decoders[0].replays >= 1

    asyncio.run(main())


def test_without_a_seed_the_request_s_id_is_the_seed() -> None:
    async def test(here: Pipeline) -> None:
        async def ask(name: str) -> tuple[int, ...]:
            events = here.client.generate_now(prompt="hello", max_tokens=30, id=name, temperature=0.5)
            *_, final = [event async for event in events]
            return final.ids

        one, other = await ask("one"), await ask("other")
        assert one != other
        assert await ask("one") == one

    run(test)


def test_n_choices_differ_stream_by_their_index_and_share_one_final_event() -> None:
    async def test(here: Pipeline) -> None:
        events = [e async for e in here.client.generate(prompt="hello", max_tokens=20, n=3, **WARM)]
        *tokens, final = events
        assert isinstance(final, FinalEvent)
        wanted = [sampled("hello", 20, WARM, choice) for choice in range(3)]
        assert [choice.ids for choice in final.choices] == wanted and len(set(wanted)) == 3
        assert final.ids == wanted[0]
        assert [event.seq for event in events] == list(range(len(events)))
        for index in range(3):
            streamed = [e for e in tokens if isinstance(e, TokenEvent) and e.index == index]
            assert tuple(i for e in streamed for i in e.ids) == wanted[index]
        assert (final.usage.prompt_tokens, final.usage.completion_tokens) == (5, sum(map(len, wanted)))

    run(test)


@pytest.mark.parametrize("tokens", [1, 2, 5, 8])
def test_choices_that_end_in_the_same_step_lose_no_token(tokens: int) -> None:
    async def test(here: Pipeline) -> None:
        answers = here.client.generate(prompt="hello", max_tokens=tokens, n=2, draft="none", **WARM)
        *streamed, final = [event async for event in answers]
        assert isinstance(final, FinalEvent)
        for index, choice in enumerate(final.choices):
            ids = [i for e in streamed if isinstance(e, TokenEvent) and e.index == index for i in e.ids]
            assert tuple(ids) == choice.ids == sampled("hello", tokens, WARM, index)

    run(test, stages=1)


def test_a_cancel_stops_every_choice() -> None:  # D19
    async def test(here: Pipeline) -> None:
        events = here.client.generate(prompt="hello", id="mine", max_tokens=150, n=4, **WARM)
        await anext(events)
        await here.client.cancel("mine")
        *_, final = [event async for event in events]
        assert isinstance(final, FinalEvent)
        assert "cancelled" in {choice.finish_reason for choice in final.choices}
        assert here.decoders[0].running == 0

    run(test)


@pytest.mark.parametrize("drafts", [{"draft": "none"}, {"draft_tokens": 4}])
def test_logprobs_belong_to_the_ids_with_and_without_drafts(drafts: dict[str, Any]) -> None:  # A10, B12
    async def test(here: Pipeline) -> None:
        events = [
            e
            async for e in here.client.generate(
                prompt="hello", max_tokens=30, stop=["zz", "s"], logprobs=True, top_logprobs=2, **WARM, **drafts
            )
        ]
        *tokens, final = events
        assert isinstance(final, FinalEvent)
        assert tuple(one.id for one in final.logprobs) == final.ids
        assert [one for e in tokens for one in e.logprobs] == list(final.logprobs)
        hot = 1 - np.log(np.e + VOCABULARY - 1)
        history = list(b"hello")
        for one in final.logprobs:
            likeliest = next_token(history)
            assert (one.top[0].id, one.top[0].logprob) == (likeliest, pytest.approx(hot, abs=1e-5))
            assert len(one.top) == 2 and one.bytes == (one.id,)
            assert one.logprob == pytest.approx(hot if one.id == likeliest else hot - 1, abs=1e-5)
            history.append(one.id)

    run(test)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 1.5),
        ("min_p", 1.01),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", "1"),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"3": 101}),
        ("logit_bias", {"256": 1}),
        ("logit_bias", [1]),
        ("seed", 1.5),
        ("n", 0),
        ("n", 17),
        ("logprobs", 1),
        ("top_logprobs", 21),
        ("top_logprobs", 3),
    ],
)
def test_impossible_wishes_are_refused_by_name(field: str, value: object) -> None:
    async def test(here: Pipeline) -> None:
        with pytest.raises(PromptError, match=repr(field)):
            await here.client.complete(prompt="hello", **{field: value})

    run(test, drafts=False)
