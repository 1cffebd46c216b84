"""Does one shard run as fast as the whole model, and what is the beam_idx Gather worth?

One thread, pinned to core 0, contexts 40 and 1000, decode speed after the first token. Paired: in every round
openvino-genai's LLMPipeline and the one-stage shard on the paged and on the stateful runner, with and without the
Gather, one after the other. Profile fast, f16 KV on every side.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.calm import Calm
from bench.load import PROMPTS
from bench.model import ir_folder
from bench.record import RESULTS, Record, ratio
from export_tools.sources.open import open_source
from export_tools.split import SplitOptions, split
from stages.chain import Chain, make_rows, prefill
from stages.settings import RunnerOptions

CONTEXTS = (40, 1000)
GATES = {"paged": 0.97, "stateful": 0.95}
FILLER = "The ship left the harbour in the morning and came back with the evening tide. "


@contextlib.contextmanager
def whole(folder: Path) -> Generator[Any]:
    command = [sys.executable, "-m", "bench.whole", "llm", str(folder), "0", "f16"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        json.loads(process.stdout.readline())

        def decode_speed(prompt: str, tokens: int) -> float:
            assert process.stdin and process.stdout
            print(json.dumps({"prompts": [prompt], "tokens": tokens}), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())["decode"][0]

        yield decode_speed
        process.stdin.close()


def decode_speed(chain: Chain, prompt: list[int], tokens: int) -> float:
    """Tokens per second after the first one; one sequence, one token a step."""
    token = int(prefill(chain, 0, prompt).argmax())
    started = time.perf_counter()
    for i in range(tokens - 1):
        rows = make_rows([(0, len(prompt) + i, 1, 0, 1)], chain.block_size, 64)
        token = int(chain.infer(rows, np.array([token], np.int32)).argmax())
    return (tokens - 1) / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24)
    options = parser.parse_args()
    os.sched_setaffinity(0, {0})
    folder = ir_folder()
    with tempfile.TemporaryDirectory() as work, whole(folder) as genai, Calm((0,)) as calm:
        chains = _chains(folder, Path(work))
        samples = _measure(chains, genai, calm, options.rounds, options.tokens)
    _report(samples, calm, options.tokens)


def _chains(folder: Path, work: Path) -> dict[str, Chain]:
    fast = {"profile": "fast", "threads": 1}
    with open_source(folder) as source:
        for name, gather in (("with", True), ("without", False)):
            split(source, SplitOptions(out=work / name, stages=1, name="bench", beam_gather=gather), lambda _: None)
    return {
        "paged": Chain.open(work / "with", RunnerOptions(kind="paged", **fast)),
        "stateful": Chain.open(work / "with", RunnerOptions(kind="stateful", **fast)),
        "stateful, no Gather": Chain.open(work / "without", RunnerOptions(kind="stateful", **fast)),
    }


def _measure(
    chains: dict[str, Chain], genai: Any, calm: Calm, rounds: int, tokens: int
) -> dict[tuple[str, int], list[tuple[float, bool]]]:
    from openvino_genai import Tokenizer  # noqa: PLC0415

    tokenizer = Tokenizer(str(ir_folder()))
    samples: dict[tuple[str, int], list[tuple[float, bool]]] = {}
    for context in CONTEXTS:
        text = PROMPTS[0] + " " + FILLER * (context // 8)
        ids = tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()[:context]
        prompt = tokenizer.decode(ids)
        for round_number in range(-1, rounds):  # the first one warms up
            sides = {"genai": calm.watch(lambda prompt=prompt: genai(prompt, tokens))}
            for name, chain in chains.items():
                sides[name] = calm.watch(lambda chain=chain, ids=ids: decode_speed(chain, ids, tokens))
            if round_number >= 0:
                for name, sample in sides.items():
                    samples.setdefault((name, context), []).append(sample)
    return samples


def _report(samples: dict[tuple[str, int], list[tuple[float, bool]]], calm: Calm, tokens: int) -> None:
    table = Table("context", "runner", "shard", "LLMPipeline", "ratio", "range", "quiet rounds", "wanted")
    for (name, context), values in samples.items():
        speeds = [speed for speed, _ in values]
        record = Record(
            name=f"parity.{name}",
            params={"context": context, "tokens": tokens, "quiet": [quiet for _, quiet in values]},
            unit="tokens/s",
            samples=speeds,
        )
        record.append_to(RESULTS / "parity.jsonl")
        if name == "genai":
            continue
        pairs = list(zip(values, samples["genai", context], strict=True))
        quiet = [(ours[0], theirs[0]) for ours, theirs in pairs if ours[1] and theirs[1]]
        used = quiet if len(quiet) >= 3 else [(ours[0], theirs[0]) for ours, theirs in pairs]
        middle, least, most = ratio([a for a, _ in used], [b for _, b in used])
        gate = GATES.get(name)
        table.add_row(
            str(context),
            name,
            f"{sorted(a for a, _ in used)[len(used) // 2]:.1f} tok/s",
            f"{sorted(b for _, b in used)[len(used) // 2]:.1f} tok/s",
            f"{middle:.2f}",
            f"{least:.2f} to {most:.2f}",
            f"{len(quiet)} of {len(pairs)}",
            f"≥ {gate}" if gate else "",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
