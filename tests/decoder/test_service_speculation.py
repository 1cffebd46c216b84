"""Speculation through a whole pipeline on the memory transport: real decoder, real workers, real draft model code."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.contract.drafts import Draft, DraftRequest
from engine.contract.errors import DeviceError, PromptError
from engine.decoder.drafters import RemoteDrafter, ThreadDrafter
from engine.transport.memory import MemoryTransport
from stages.draft_model import DraftModel
from tests.decoder.local_pipeline import SUBJECTS, ArithmeticShard, Pipeline, answer_to, pipeline
from tests.manifests import VOCABULARY

pytestmark = pytest.mark.pipelines

PROMPTS = ("hello", "a", "What is the capital of Japan?", "abcabcabcabcabcabc", "x" * 90)
THREAD = ThreadPoolExecutor(1)


def draft_model() -> DraftModel:
    """The same arithmetic as the target's: all drafts hold."""
    return DraftModel(ArithmeticShard(last=True), vocabulary=VOCABULARY)


class Erring:
    """Every third draft is wrong from its second token on."""

    def __init__(self) -> None:
        self.model, self.count = draft_model(), 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.count += 1
        found = self.model.propose(requests)
        if self.count % 3:
            return found
        return [Draft(draft.tokens[:1] + (0,) * len(draft.tokens[1:]), draft.state) for draft in found]


class Failing:
    async def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        raise DeviceError("the draft model's device is gone")


async def answers(here: Pipeline, count: int = 40, **fields: object) -> None:
    """All prompts at once; each answer is the one without drafts."""
    finals = await asyncio.gather(*(here.client.complete(prompt=p, max_tokens=count, **fields) for p in PROMPTS))
    assert [final.text for final in finals] == [answer_to(prompt, count) for prompt in PROMPTS]
    assert all(final.usage.completion_tokens == count for final in finals)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_drafts_change_nothing_on_any_number_of_stages(stages: int) -> None:  # B18
    async def run() -> None:
        async with pipeline(stages, whole=False) as here:
            here.draft_with(lambda: ThreadDrafter(Erring().propose, THREAD), "lookup", "model")
            await here.start()
            await answers(here)
            for k in (1, 3, 5, 10):
                await answers(here, draft="model", draft_tokens=k)
            await answers(here, draft="lookup", draft_tokens=4)
            await answers(here, draft="none")
            for prompt in PROMPTS:  # one alone runs ahead
                final = await here.client.complete(prompt=prompt, max_tokens=40, draft="model", draft_tokens=2)
                assert final.text == answer_to(prompt, 40)
                assert 10 < final.usage.accepted_tokens <= final.usage.drafted_tokens

    asyncio.run(run())


@pytest.mark.parametrize("lost", [0, 1])
def test_a_stage_lost_with_windows_in_flight_costs_time_and_no_text(lost: int) -> None:  # B18
    async def run() -> None:
        async with pipeline(2, whole=False) as here:
            here.draft_with(lambda: ThreadDrafter(Erring().propose, THREAD), "model")
            workers = await here.start()
            tokens, reached = 0, asyncio.Event()

            async def one(prompt: str) -> None:
                nonlocal tokens
                text = ""
                async for event in here.client.generate(prompt=prompt, max_tokens=60, draft_tokens=3):
                    text = event.text if event.seq and hasattr(event, "usage") else text + event.text
                    tokens += len(event.ids)
                    if tokens > 60:
                        reached.set()
                assert text == answer_to(prompt, 60)

            async with asyncio.TaskGroup() as tasks:
                for prompt in PROMPTS[:3]:
                    tasks.create_task(one(prompt))
                await reached.wait()
                await here.kill(workers[lost])
                await here.start_worker(lost)
            assert here.decoders[0].replays >= 1

    asyncio.run(run())


def test_a_draft_model_elsewhere_gives_the_same_answers() -> None:
    async def run() -> None:
        async with pipeline(2, whole=False) as here:
            here.draft_with(lambda: RemoteDrafter(MemoryTransport(here.broker), SUBJECTS.draft), "model")
            worker = await here.start_draft_worker(draft_model())
            await here.start()
            final = await here.client.complete(prompt="hello", max_tokens=40, draft_tokens=3)
            assert final.text == answer_to("hello", 40)
            assert final.usage.accepted_tokens > 20
            await here.kill(worker)
            await here.start_draft_worker(draft_model())  # knows nothing of what was told before
            await answers(here, draft_tokens=3)

    asyncio.run(run())


def test_without_its_draft_worker_a_decoder_answers_undrafted() -> None:
    async def run() -> None:
        async with pipeline(2, whole=False) as here:
            here.draft_with(lambda: RemoteDrafter(MemoryTransport(here.broker), SUBJECTS.draft), "model")
            await here.start()
            await answers(here)

    asyncio.run(run())


def test_a_draft_model_that_fails_is_left_alone_and_the_answers_go_on() -> None:
    async def run() -> None:
        async with pipeline(2, whole=False) as here:
            here.draft_with(Failing, "lookup", "model")
            await here.start()
            await answers(here)
            assert here.decoders[0].draft_failures == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("field", "value"), [("draft", "maybe"), ("draft_tokens", 17), ("draft_tokens", -1), ("draft_tokens", True)]
)
def test_impossible_wishes_are_refused_by_name(field: str, value: object) -> None:
    async def run() -> None:
        async with pipeline(2) as here:
            with pytest.raises(PromptError, match=repr(field)):
                await here.client.complete(prompt="hello", **{field: value})

    asyncio.run(run())
