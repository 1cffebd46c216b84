"""How much a row's length changes its logits, per runner and KV precision, on the real model in 4 bits (B20).

The numbers are the tolerance of everything that compares tokens across row lengths: `exact` needs none.
"""

import numpy as np
import pytest

from stages.chain import Chain, make_rows
from stages.settings import RunnerOptions
from tests.conftest import Shards

pytestmark = pytest.mark.model
PREFIX, LENGTH = 40, 8
TOLERANCE = {("paged", "exact"): 0.0, ("paged", "fast"): 0.3, ("stateful", "exact"): 1e-3, ("stateful", "fast"): 0.3}


@pytest.mark.parametrize(("kind", "profile"), TOLERANCE)
def test_eight_tokens_in_one_row_give_the_logits_of_eight_short_rows(shards: Shards, kind: str, profile: str) -> None:
    tokens = np.random.default_rng(3).integers(0, 40_000, PREFIX + LENGTH).astype(np.int32)
    options = RunnerOptions(kind=kind, profile=profile, threads=2, slots=2)  # type: ignore[arg-type]
    with Chain.open(shards(1), options) as chain:
        least, size = chain.runners[0].capabilities.min_row_tokens, chain.block_size
        for slot in (0, 1):
            chain.infer(make_rows([(slot, 0, PREFIX, 0, 0)], size), tokens[:PREFIX])
        whole = chain.infer(make_rows([(0, PREFIX, LENGTH, 0, LENGTH)], size), tokens[PREFIX:]).copy()
        short = []
        for at in range(PREFIX, PREFIX + LENGTH):
            fed = np.resize(tokens[at : at + 1], least)
            short.append(chain.infer(make_rows([(1, at, least, 0, 1)], size), fed)[0].copy())
    difference = np.abs(whole - np.stack(short)).max(axis=-1)
    best = np.sort(whole, axis=-1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > 2 * difference
    print(f"{kind} {profile}: largest difference {difference.max():.2g}, {clear.sum()} of {LENGTH} clear")
    assert difference.max() <= TOLERANCE[kind, profile]
    assert (whole.argmax(-1) == np.stack(short).argmax(-1))[clear].all()
