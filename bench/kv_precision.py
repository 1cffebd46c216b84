"""What does a KV cache of 16 or 8 bits change: after rejected drafts, in the logits, in greedy tokens, in memory?

The uncut demo model, paged, one thread. Every measure feeds the same tokens, those that the f32 cache generates
greedily, in rows of two, so that only the cache differs:
  drafts      each row once with three wrong drafts behind it, once without: largest difference in the logits
  rows        the same tokens in rows of four instead of two: largest difference in the logits
  against f32 largest difference in the logits of each position, and share of positions with the same argmax
  free        greedy tokens of its own until the first that differs from the f32 cache's
Keys of a cache of 8 bits are measured with scales by token (what shardline sets) and by channel (the plugin's default).
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import stages.settings
from bench.load import PROMPTS
from bench.record import RESULTS, Record
from engine.contract.manifest import load_manifest
from engine.decoder.tokenizer import load_tokenizer
from engine.local.model import demo_split
from stages.chain import Chain, make_rows, prefill
from stages.paged import PagedRunner, block_of
from stages.settings import RunnerOptions

WRONG = 3  # drafts behind every row
CACHES: dict[str, tuple[str, str | None, str]] = {  # name: profile, precision, scales of keys
    "f32": ("exact", None, ""),
    "f16": ("fast", None, ""),
    "u8 by token": ("fast", "u8", "BY_TOKEN"),
    "u8 by channel": ("fast", "u8", "BY_CHANNEL"),
}


@dataclass(frozen=True, slots=True)
class Question:
    prompt: list[int]
    answer: list[int]  # greedy, of the f32 cache


def replay(chain: Chain, question: Question, row: int, wrong: int) -> Any:
    """Logits behind the prompt and every token of the answer but the last, float32 (answer, vocabulary)."""
    tokens, at = question.answer, len(question.prompt)
    blocks = -(-(at + len(tokens) + WRONG + row) // chain.block_size)
    found = [prefill(chain, 0, question.prompt)]
    drafts = [777] * wrong
    for first in range(0, len(tokens) - row, row):
        rows = make_rows([(0, at + first, row + wrong, 0, row)], chain.block_size, blocks)
        found.append(chain.infer(rows, np.array([*tokens[first : first + row], *drafts], np.int32)).copy())
    return np.concatenate(found)


def greedy(chain: Chain, prompt: Sequence[int], count: int) -> tuple[list[int], list[float]]:
    """Tokens, and milliseconds of each; rows of two, the second a dummy."""
    blocks = -(-(len(prompt) + count + 2) // chain.block_size)
    tokens, took = [int(prefill(chain, 0, prompt).argmax())], []
    while len(tokens) < count:
        rows = make_rows([(0, len(prompt) + len(tokens) - 1, 2, 0, 1)], chain.block_size, blocks)
        began = time.perf_counter()
        tokens.append(int(chain.infer(rows, np.array([tokens[-1], 0], np.int32)).argmax()))
        took.append((time.perf_counter() - began) * 1e3)
    return tokens, took


def apart(a: Any, b: Any) -> list[float]:
    """Largest difference at each position."""
    count = min(len(a), len(b))
    return np.abs(a[:count] - b[:count]).max(axis=1).tolist()


def opened(shards: Path, name: str) -> Chain:
    profile, precision, scales = CACHES[name]
    stages.settings.U8_KEYS = scales  # type: ignore[misc]
    return Chain.open(
        shards,
        RunnerOptions(profile=profile, kv_precision=precision, threads=1),  # type: ignore[arg-type]
    )


def measure(chain: Chain, name: str, questions: Sequence[Question], exact: dict[int, Any]) -> dict[str, list[float]]:
    """Samples by measure, one a position or one a question; keeps the f32 cache's logits in `exact`."""
    runner = chain.runners[0]
    assert isinstance(runner, PagedRunner)
    block = block_of(runner.compiled)
    found: dict[str, list[float]] = {key: [] for key in ("drafts", "rows", "against f32", "same argmax", "free", "ms")}
    found["bytes a token"] = [block.bytes / block.tokens]
    for number, question in enumerate(questions):
        logits = replay(chain, question, 2, 0)
        reference = exact.setdefault(number, logits)
        found["drafts"] += apart(logits, replay(chain, question, 2, WRONG))
        found["rows"] += apart(logits, replay(chain, question, 4, 0))
        found["against f32"] += apart(logits, reference)
        found["same argmax"] += (logits.argmax(1) == reference.argmax(1)).astype(float).tolist()
        tokens, took = greedy(chain, question.prompt, len(question.answer))
        equal = [a == b for a, b in zip(tokens, question.answer, strict=True)]
        found["free"].append(float(equal.index(False) if False in equal else len(equal)))
        found["ms"] += took
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--prompts", type=int, default=3)
    options = parser.parse_args()
    shards = asyncio.run(demo_split(1, print))
    tokenizer = load_tokenizer(shards, load_manifest(shards))
    asked = [tokenizer.chat([{"role": "user", "content": text}]) for text in PROMPTS[3 : 3 + options.prompts]]
    prompts = [tokenizer.encode(text, special=False) for text in asked]
    with opened(shards, "f32") as chain:
        questions = [Question(prompt, greedy(chain, prompt, options.tokens)[0]) for prompt in prompts]
    exact: dict[int, Any] = {}
    table = Table("cache", "bytes a token", "drafts", "rows", "against f32", "same argmax", "free", "ms a row")
    for name in CACHES:
        with opened(shards, name) as chain:
            found = measure(chain, name, questions, exact)
        for measured, samples in found.items():
            params = {"cache": name, "measure": measured, "tokens": options.tokens, "prompts": options.prompts}
            unit = {"ms": "ms", "free": "tokens", "bytes a token": "B", "same argmax": "0 or 1"}.get(measured, "logit")
            record = Record(name="kv_precision", params=params, unit=unit, samples=samples)
            record.append_to(RESULTS / "kv_precision.jsonl")
        table.add_row(
            name,
            f"{found['bytes a token'][0]:.0f}",
            f"{max(found['drafts']):.2g}",
            f"{max(found['rows']):.2g}",
            f"{max(found['against f32']):.2g} (median {statistics.median(found['against f32']):.2g})",
            f"{statistics.mean(found['same argmax']):.1%}",
            ", ".join(f"{count:.0f}" for count in found["free"]),
            f"{statistics.median(found['ms']):.1f}",
        )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
