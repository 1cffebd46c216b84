"""References that take minutes are computed beside each other, and once for all files that need them."""

import multiprocessing
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import pytest

from engine.contract.manifest import load_manifest
from engine.decoder.tokenizer import load_tokenizer
from tests.conftest import Shards
from tests.system.prompts import THIRTY
from tests.system.references import COUNT, Tokens, free_run, genai_run

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
