"""Answers of a given form through a whole pipeline: what happens when the form can no longer be kept to."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from llguidance import LLParserLimits

from engine.contract.errors import ErrorCode
from engine.contract.prompt import FinalEvent, TokenEvent
from engine.decoder import constraint
from engine.decoder.constraint import ConstraintCompiler
from engine.decoder.drafters import ThreadDrafter
from stages.draft_model import DraftModel
from tests.decoder.local_pipeline import ArithmeticShard, ByteTokenizer, Pipeline, answer_to, pipeline
from tests.decoder.test_constraint import SCHEMA
from tests.manifests import EOS, VOCABULARY

THREAD = ThreadPoolExecutor(1)
FORM = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}


async def whole(here: Pipeline, **fields: Any) -> tuple[str, FinalEvent]:
    *tokens, final = [event async for event in here.client.generate(prompt="hello", response_format=FORM, **fields)]
    assert isinstance(final, FinalEvent)
    return "".join(event.text for event in tokens if isinstance(event, TokenEvent)), final


@pytest.mark.parametrize("states", [30, 40, 60, 80])
@pytest.mark.parametrize("fields", [{"draft": "none"}, {"draft_tokens": 5}, {"draft_tokens": 3, "n": 3, "seed": 1}])
def test_a_form_that_becomes_too_complex_ends_the_answer_in_an_error(
    monkeypatch: pytest.MonkeyPatch, states: int, fields: dict[str, Any]
) -> None:
    monkeypatch.setattr(constraint, "_LIMITS", LLParserLimits(verbose_errors=False, max_lexer_states=states))

    async def main() -> None:
        async with pipeline(2, whole=False) as here:
            model = DraftModel(ArithmeticShard(last=True), vocabulary=VOCABULARY)
            here.draft_with(lambda: ThreadDrafter(model.propose, THREAD), "lookup", "model")
            here.compiler = ConstraintCompiler(ByteTokenizer(), vocabulary=VOCABULARY, eos_ids=[EOS])
            await here.start()
            beside = asyncio.create_task(here.client.complete(prompt="why", max_tokens=60))
            shown, final = await whole(here, max_tokens=120, temperature=0.5 if "n" in fields else 0, **fields)
            assert final.finish_reason == "error" and final.error is not None
            assert final.error["code"] == ErrorCode.FORMAT_TOO_COMPLEX
            assert "what the answer must look like" in final.error["message"] and "\n" not in final.error["message"]
            if "n" not in fields:
                assert final.text == shown
            assert (await beside).text == answer_to("why", 60)
            assert here.decoders[0].running == 0 and here.decoders[0].replays == 0

    asyncio.run(main())
