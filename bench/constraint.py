"""How long does it take to compile a grammar, and to say at each position of an answer which tokens may come?

CPU time of one thread. The demo model's vocabulary (49,152 tokens), and one of 128,000: the same and random words. A
schema of middle size, an answer to it of about 100 tokens; `masks` without drafts and with four, which is five masks.
Beside it `any JSON object`, and the time to prepare a vocabulary.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.record import RESULTS, Record
from engine.contract.manifest import load_manifest
from engine.contract.response_format import JsonObject, JsonSchema, ResponseFormat
from engine.decoder.constraint import ConstraintCompiler
from engine.decoder.tokenizer import load_tokenizer
from engine.local.model import demo_split

DRAFTS = 4
LARGE = 128_000
_ITEM = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["id", "price"],
    "additionalProperties": False,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string"},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
                "country": {"enum": ["DE", "FR", "US"]},
            },
            "required": ["street", "zip", "country"],
            "additionalProperties": False,
        },
        "items": {"type": "array", "items": _ITEM},
    },
    "required": ["name", "age", "address", "items"],
    "additionalProperties": False,
}
DOCUMENT = {
    "name": "Anna Schmidt",
    "age": 31,
    "email": "anna@example.org",
    "tags": ["a", "bee"],
    "address": {"street": "Hauptstr. 5", "zip": "12345", "country": "DE"},
    "items": [{"id": 1, "price": 2.5, "note": None}, {"id": 2, "price": 3}],
}


class Spelled:
    """The demo's tokenizer with further tokens."""

    def __init__(self, encode: Callable[..., list[int]], pieces: Sequence[bytes]) -> None:
        self.encode, self._pieces = encode, pieces

    def text_bytes(self) -> Sequence[bytes]:
        return self._pieces


def timed(do: Callable[[], object]) -> float:
    """Milliseconds of CPU time."""
    began = time.thread_time()
    do()
    return (time.thread_time() - began) * 1e3


def walk(compiler: ConstraintCompiler, wanted: ResponseFormat, ids: Sequence[int], drafts: int) -> list[float]:
    """Milliseconds of `masks` at every position of an answer; raises ValueError when the grammar refuses it."""
    constraint, found = compiler.constraint(wanted), []
    for at, token in enumerate(ids):
        ahead = ids[at : at + drafts]
        found.append(timed(partial(constraint.masks, ahead)))
        constraint.accept([token])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    shards = asyncio.run(demo_split(1, print))
    manifest = load_manifest(shards)
    tokenizer = load_tokenizer(shards, manifest)
    pieces = list(tokenizer.text_bytes() or [])
    noise = np.random.default_rng(0)
    words = [bytes(noise.integers(97, 123, noise.integers(3, 10)).astype(np.uint8)) for _ in range(LARGE - len(pieces))]
    ids = tokenizer.encode(json.dumps(DOCUMENT), special=False)
    table = Table("vocabulary", "what", "median", "mean", "95 %", "most", title="milliseconds")
    for spelled in (pieces, pieces + words):
        made = Spelled(tokenizer.encode, spelled)

        compiler = partial(ConstraintCompiler, made, vocabulary=len(spelled), eos_ids=manifest.eos_ids)
        ready = compiler()
        found = {"prepare a vocabulary": [timed(compiler) for _ in range(3)], "compile the schema": []}
        for i in range(options.rounds):
            wanted = JsonSchema(json.dumps(SCHEMA | {"title": str(i)}))
            found["compile the schema"].append(timed(partial(ready.constraint, wanted)))
            for name, grammar in (("schema", wanted), ("any object", JsonObject())):
                for drafts in (0, DRAFTS):
                    samples = found.setdefault(f"masks, {name}, {drafts} drafts", [])
                    samples += walk(ready, grammar, ids, drafts)
        for what, samples in found.items():
            params = {"vocabulary": len(spelled), "what": what, "tokens": len(ids)}
            Record(name="constraint", params=params, unit="ms", samples=samples).append_to(RESULTS / "constraint.jsonl")
            figures = (statistics.median(samples), statistics.mean(samples), np.percentile(samples, 95), max(samples))
            table.add_row(str(len(spelled)), what, *(f"{value:.2f}" for value in figures))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
