"""A pipeline of three real processes, each with another runner, gives the tokens of the uncut model."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.client.client import Client
from engine.contract.manifest import load_manifest
from engine.contract.prompt import FinalEvent
from engine.contract.static import StaticLimits
from engine.decoder.tokenizer import load_tokenizer
from engine.local.broker import start_broker
from engine.local.pipeline import LocalPipeline
from engine.local.processes import Processes
from engine.transport.nats import connect
from engine.transport.subjects import Subjects
from stages.chain import Chain, prefill
from stages.settings import RunnerOptions
from tests.conftest import Shards
from tests.system.prompts import THIRTY

pytestmark = [pytest.mark.model, pytest.mark.broker]
LIMITS = StaticLimits(context=160, slots=4, verify_tokens=4, prefill_chunk=32)
ANSWER = 40  # tokens
NEAR = 2e-3  # logits


@pytest.fixture
def static_shards(shards: Shards, tmp_path: Path) -> Path:
    """Three shards of the demo model, made for the static runner too."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for entry in shards(3).iterdir():
        (folder / entry.name).symlink_to(entry)
    (folder / "manifest.json").unlink()
    replace(load_manifest(shards(3)), static=LIMITS).save(folder)
    return folder


def ask(folder: Path, home: Path, runners: Sequence[str], prompts: Sequence[str]) -> list[FinalEvent]:
    """All prompts at once, with drafts looked up; stage i with the i-th runner."""

    async def main() -> list[FinalEvent]:
        async with asyncio.timeout(300), Processes(home / "logs") as processes:
            url = await start_broker(processes, home)
            here = LocalPipeline(url, load_manifest(folder).slug, folder, processes)
            for index, runner in enumerate(runners):
                here.stage_options = ("--runner", runner, "--slots", str(LIMITS.slots))
                here.stages.append(await here.start_stage(index, len(runners)))
            decoder = await here.start_decoder("--draft", "lookup")
            for child in (*here.stages, decoder):
                await child.wait_for_line("ready")
            async with connect(url, name="test") as transport:
                client = Client(transport, Subjects("default", here.slug))
                asked = [client.complete(prompt=p, max_tokens=ANSWER, ignore_eos=True, draft_tokens=3) for p in prompts]
                finals = list(await asyncio.gather(*asked))
                long = await client.complete(prompt=prompts[0], max_tokens=1000, ignore_eos=True)
                assert long.usage.prompt_tokens + long.usage.completion_tokens == LIMITS.context
                return finals

    return asyncio.run(main())


def test_stages_with_different_runners_make_one_pipeline(static_shards: Path, shards: Shards, tmp_path: Path) -> None:
    """More prompts than slots, with drafts: each token is the best one, or as good as it up to the kernels."""
    finals = ask(static_shards, tmp_path, ("paged", "stateful", "static"), THIRTY[:6])
    assert sum(final.usage.drafted_tokens for final in finals) > 0
    with Chain.open(shards(1), RunnerOptions(kind="stateful", threads=2)) as chain:
        tokenizer = load_tokenizer(shards(1), load_manifest(shards(1)))
        for prompt, final in zip(THIRTY, finals, strict=False):
            ids = [*tokenizer.encode(prompt, special=True), *final.ids]
            first = len(ids) - ANSWER
            for at in range(first, len(ids)) if prompt == THIRTY[0] else (first, first + ANSWER // 2, len(ids) - 1):
                logits = prefill(chain, 0, ids[:at])[0]
                assert logits.max() - logits[ids[at]] < NEAR
