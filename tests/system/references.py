"""Long greedy runs that several tests compare with; each is one job with one thread, two at a time on two cores.

One thread on every side of a comparison: the stateful runner's kernels round differently with two.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from export_tools.sources.open import open_source
from stages.chain import Chain, generate, make_rows
from stages.settings import RunnerOptions

COUNT = 128  # tokens
STEP = 64  # tokens, the longest step in which exact promises the same bits
Tokens = list[list[int]]
PagedChain = Callable[[int], Chain]  # by number of stages


def options(kind: str, **changes: object) -> RunnerOptions:
    return RunnerOptions(kind=kind, threads=1, slots=10, kv_bytes=1 << 30, **changes)  # type: ignore[arg-type]


def free_run(folder: Path, kind: str, prompts: Sequence[Sequence[int]], count: int) -> Tokens:
    """Greedy tokens of a chain of shards in this process, all prompts together."""
    with Chain.open(folder, options(kind)) as chain:
        return greedy_run(chain, prompts, count)


def greedy_run(chain: Chain, prompts: Sequence[Sequence[int]], count: int) -> Tokens:
    """Greedy tokens of a chain, all prompts together."""
    return generate(chain, prompts, count, min_row_tokens=chain.runners[0].capabilities.min_row_tokens)


def genai_run(model: Path, prompts: Sequence[Sequence[int]], count: int) -> Tokens:
    """Greedy tokens of the whole model in openvino-genai."""
    import openvino as ov  # noqa: PLC0415
    import openvino_genai as genai  # noqa: PLC0415  seconds, and only here

    with open_source(model) as source:
        settings = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}
        pipeline = genai.LLMPipeline(str(source.model.parent), "CPU", ATTENTION_BACKEND="SDPA", **settings)
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        found: Tokens = []
        for prompt in prompts:
            ids = ov.Tensor(np.array([prompt], np.int64))
            inputs = genai.TokenizedInputs(ids, ov.Tensor(np.ones((1, len(prompt)), np.int64)))
            found.append(list(pipeline.generate(inputs, config).tokens[0]))
    return found


def logits_by_prefill(chain: Chain, tokens: Sequence[int], chunks: Sequence[int], first: int) -> np.ndarray:
    """Logits from position `first` on, of tokens fed in chunks of these sizes."""
    found, at = [], 0
    for length in chunks:
        begin = max(first - at, 0)
        picked = max(length - begin, 0)
        row = (0, at, length, min(begin, length - 1), picked)
        rows = make_rows([row], chain.block_size)
        logits = chain.infer(rows, np.array(tokens[at : at + length], np.int32))
        if picked:
            found.append(logits.copy())
        at += length
    return np.concatenate(found)


def chunks(length: int, size: int) -> list[int]:
    """Sizes that add up, none of them 1."""
    rest = length % size
    cut = [size] * (length // size) + ([rest] if rest else [])
    if cut[-1] == 1:
        cut[-2:] = [size + 1] if size == 2 else [size - 1, 2]
    return cut


def greedy_answer(chain: Chain, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """What an `exact` chain says behind the prompt and behind each token of the answer but the last.

    Equal to `answer` exactly if the chain, decoding greedily by itself, would give it: by induction over its tokens,
    because in `exact` the length of a row changes no bit (tests/stages/test_row_lengths.py). Ten times as fast.
    """
    tokens = [*prompt, *answer]
    logits = logits_by_prefill(chain, tokens, chunks(len(tokens), STEP), len(prompt) - 1)
    return logits.argmax(-1)[:-1].tolist()
