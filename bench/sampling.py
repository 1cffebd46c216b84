"""What does choosing one token cost, per row, at vocabularies of 49k and 128k? One thread, one position per row.

Logits look like a language model's: a few likely tokens far above a broad rest (the demo model's own at 49k would do
as well; their shape decides how many candidates there are). Every sample is one row drawn with another seed.
"""

import argparse
import statistics
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.record import RESULTS, Record
from engine.contract.sampling import Sampling
from engine.contract.side import RowSide
from stages.sampling import Sampler

VOCABULARIES = (49_152, 128_256)
READ, SAID = tuple(range(100, 1100)), tuple(range(500, 900))
SIDES = {
    "likeliest": {"how": Sampling()},
    "temperature 0.7": {"how": Sampling(temperature=0.7)},
    "temperature 1.5": {"how": Sampling(temperature=1.5)},
    "top-k 50, top-p 0.9": {"how": Sampling(temperature=0.7, top_k=50, top_p=0.9)},
    "top-p 0.95": {"how": Sampling(temperature=1.0, top_p=0.95)},
    "min-p 0.05": {"how": Sampling(temperature=1.0, min_p=0.05)},
    "penalties": {"how": Sampling(temperature=0.7, repetition_penalty=1.1, frequency_penalty=0.3)},
    "grammar": {"how": Sampling(temperature=0.7)},
    "5 logprobs": {"how": Sampling(logprobs=5)},
}


def lines(vocabulary: int, count: int) -> np.ndarray:
    """float32 (count, vocabulary): normal noise, and a hundred tokens whose logits fall off like a model's."""
    noise = np.random.default_rng(0)
    found = noise.normal(0.0, 2.0, (count, vocabulary)).astype(np.float32)
    for line in found:
        line[noise.choice(vocabulary, 100, replace=False)] += 14 - 3 * np.log(np.arange(1, 101, dtype=np.float32))
    return found


def measure(vocabulary: int, count: int) -> dict[str, list[float]]:
    """Milliseconds per row."""
    sampler, logits = Sampler(np.arange(vocabulary)), lines(vocabulary, 8)
    masks = np.full((1, -(-vocabulary // 32)), -1, np.int32)
    found: dict[str, list[float]] = {}
    for name, fields in SIDES.items():
        how: Sampling = fields["how"]
        for i in range(count):
            side = RowSide(
                row=0, how=Sampling(**{**how.compact(), "seed": i}), position=i, read=READ, said=SAID,
                times=(1,) * len(SAID), masks=masks if name == "grammar" else None,
            )  # fmt: skip
            began = time.perf_counter()
            sampler.choose(logits[i % 8 : i % 8 + 1], np.array([1]), [side])
            found.setdefault(name, []).append((time.perf_counter() - began) * 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    options = parser.parse_args()
    table = Table("how", *(f"{size:,} tokens" for size in VOCABULARIES), title="ms per row: median, 95th percentile")
    results = {size: measure(size, options.count) for size in VOCABULARIES}
    for name in SIDES:
        cells: list[str] = []
        for size in VOCABULARIES:
            values = results[size][name]
            params = {"how": name, "vocabulary": size}
            Record(name="sampling", params=params, unit="ms", samples=values).append_to(RESULTS / "sampling.jsonl")
            cells.append(f"{statistics.median(values):.2f}, {float(np.percentile(values, 95)):.2f}")
        table.add_row(name, *cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
