"""What happens when activations travel with fewer bits? Quality, not speed: bytes and times are bench/wire.py's.

The demo model in two stages in one process, profile exact. Every prompt's greedy answer is fed again with what the
first stage passes on rounded on its way: to float16; to 8 bits with one scale per token (as the paper tried); to 8 bits
with a scale for every 32 values. Counted per position: whether the likeliest token is still the same, and how far the
distribution moved (Kullback-Leibler divergence, nats). (paper, tab:compression)
"""

import argparse
import asyncio
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from bench.load import PROMPTS
from bench.record import RESULTS, Record
from bench.speculation import TEMPLATE
from engine.contract.manifest import load_manifest
from engine.decoder.tokenizer import load_tokenizer
from engine.local.model import demo_split
from stages.chain import Chain, make_rows, prefill
from stages.settings import RunnerOptions

GROUP = 32
Floats = npt.NDArray[np.float32]


def half(values: Floats) -> Floats:
    return values.astype(np.float16).astype(np.float32)


def by_token(values: Floats) -> Floats:
    return _eight_bits(values)


def by_group(values: Floats) -> Floats:
    return _eight_bits(values.reshape(len(values), -1, GROUP)).reshape(values.shape)


def _eight_bits(values: Floats) -> Floats:
    """Symmetric, one scale per last axis."""
    scale = np.maximum(np.abs(values).max(axis=-1, keepdims=True) / 127, 1e-12)
    return (np.round(values / scale) * scale).astype(np.float32)


WAYS: dict[str, tuple[Callable[[Floats], Floats], float]] = {  # and bytes per value
    "float32": (lambda values: values, 4.0),
    "float16": (half, 2.0),
    "8 bits, a scale per token": (by_token, 1.0),
    f"8 bits, a scale per {GROUP} values": (by_group, 1.0 + 2.0 / GROUP),
}


def replay(chain: Chain, tokens: list[int], known: int, through: Callable[[Floats], Floats]) -> Floats:
    """Logits behind every token from the `known`-th on, in one row for the prompt and rows of two behind it."""
    first, last = chain.runners
    found: list[Any] = []
    blocks = -(-(len(tokens) + 2) // chain.block_size)
    spans = [(0, known), *((at, min(at + 2, len(tokens))) for at in range(known, len(tokens) - 1, 2))]
    for begin, end in spans:
        picked = 1 if begin == 0 else end - begin
        rows = make_rows([(0, begin, end - begin, end - begin - picked, picked)], chain.block_size, blocks)
        hidden = first.infer(rows, np.array(tokens[begin:end], np.int32)).copy()
        found.append(last.infer(rows, through(hidden)).copy())
    return np.concatenate(found)


def greedy(chain: Chain, prompt: list[int], count: int) -> list[int]:
    blocks = -(-(len(prompt) + count + 2) // chain.block_size)
    answer = [int(prefill(chain, 0, prompt).argmax())]
    while len(answer) < count:
        rows = make_rows([(0, len(prompt) + len(answer) - 1, 2, 0, 1)], chain.block_size, blocks)
        answer.append(int(chain.infer(rows, np.array([answer[-1], 0], np.int32)).argmax()))
    return answer


def divergence(reference: Floats, other: Floats) -> list[float]:
    """KL(reference, other) at each position."""
    logs = [x.astype(np.float64) - np.logaddexp.reduce(x.astype(np.float64), axis=-1, keepdims=True)
            for x in (reference, other)]  # fmt: skip
    return (np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=-1).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    shards = asyncio.run(demo_split(2, print))
    tokenizer = load_tokenizer(shards, load_manifest(shards))
    chain = Chain.open(shards, RunnerOptions(kind="paged", profile="exact", threads=2))
    same: dict[str, list[float]] = {}
    moved: dict[str, list[float]] = {}
    for text in PROMPTS:
        prompt = list(tokenizer.encode(TEMPLATE.replace("{}", text), special=False))
        tokens = prompt + greedy(chain, prompt, options.tokens)
        reference = replay(chain, tokens, len(prompt), WAYS["float32"][0])
        for way, (through, _) in WAYS.items():
            logits = replay(chain, tokens, len(prompt), through)
            same.setdefault(way, []).extend((logits.argmax(-1) == reference.argmax(-1)).astype(float).tolist())
            moved.setdefault(way, []).extend(divergence(reference, logits))
    table = Table("activations", "bytes a value", "same likeliest token", "KL, mean", "KL, largest")
    for way, (_, size) in WAYS.items():
        for measure, samples, unit in (("same", same[way], "0 or 1"), ("kl", moved[way], "nats")):
            params = {"way": way, "measure": measure, "bytes": size, "tokens": options.tokens, "prompts": len(PROMPTS)}
            Record(name="activations", params=params, unit=unit, samples=samples).append_to(
                RESULTS / "activations.jsonl"
            )
        mean, most = statistics.mean(moved[way]), max(moved[way])
        table.add_row(way, f"{size:.2f}", f"{statistics.mean(same[way]):.2%}", f"{mean:.2e}", f"{most:.2e}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
