"""What takes minutes is done once for all files that need it: references, and starting a pipeline that drafts."""

import multiprocessing
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from engine.contract.manifest import load_manifest
from engine.decoder.tokenizer import load_tokenizer
from stages.chain import Chain
from tests.conftest import Shards
from tests.system.prompts import THIRTY
from tests.system.references import COUNT, PagedChain, Tokens, free_run, genai_run, options
from tests.system.running import Running, running

References = dict[str, Future[Tokens]]


@pytest.fixture(scope="session")
def prompt_ids(shards: Shards) -> Tokens:
    """Token ids of thirty prompts."""
    tokenizer = load_tokenizer(shards(1), load_manifest(shards(1)))
    return [tokenizer.encode(prompt, special=True) for prompt in THIRTY]


@pytest.fixture(scope="session")
def references(shards: Shards, demo_model: Path, prompt_ids: Tokens) -> Generator[References]:
    """All of them are under way; ask for the result where it is needed."""
    ten = prompt_ids[:10]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield {
            "genai": pool.submit(genai_run, demo_model, ten, COUNT),
            **{f"stateful {n}": pool.submit(free_run, shards(n), "stateful", ten, COUNT) for n in (1, 2, 3)},
            "paged": pool.submit(free_run, shards(1), "paged", ten, COUNT),
        }
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def reference(references: References) -> Callable[[str], Tokens]:
    """Wait for one: "genai", "paged", "stateful 1" to "stateful 3"; of the first ten prompts."""
    return lambda name: references[name].result()


@pytest.fixture(scope="session")
def paged(shards: Shards) -> Generator[PagedChain]:
    """The model in so many stages in this process, loaded once; whoever asks it begins at position 0."""
    with ExitStack() as stack:
        yield cache(lambda stages: stack.enter_context(Chain.open(shards(stages), options("paged"))))


@pytest.fixture(scope="session")
def drafting(shards: Shards, draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    """A pipeline of two stages whose decoder has a draft model."""
    with running(shards(2), tmp_path_factory.mktemp("drafting"), decoder_options=("--draft", str(draft))) as here:
        yield here
