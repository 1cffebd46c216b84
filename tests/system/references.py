"""Long greedy runs that several tests compare with; each is one job with one thread, two at a time on two cores.

One thread on every side of a comparison: the stateful runner's kernels round differently with two.
"""

from collections.abc import Sequence
from pathlib import Path

from export_tools.sources.open import open_source
from stages.chain import Chain, generate
from stages.settings import RunnerOptions

COUNT = 128  # tokens of the runs over ten prompts
LONG = 256  # of the run over thirty
Tokens = list[list[int]]


def options(kind: str, **changes: object) -> RunnerOptions:
    return RunnerOptions(kind=kind, threads=1, slots=10, kv_bytes=1 << 30, **changes)  # type: ignore[arg-type]


def free_run(folder: Path, kind: str, prompts: Sequence[Sequence[int]], count: int) -> Tokens:
    """Greedy tokens of a chain of shards in this process, all prompts together."""
    with Chain.open(folder, options(kind)) as chain:
        least = chain.runners[0].capabilities.min_row_tokens
        return generate(chain, prompts, count, min_row_tokens=least)


def genai_run(model: Path, prompts: Sequence[Sequence[int]], count: int) -> Tokens:
    """Greedy tokens of the whole model in openvino-genai."""
    import numpy as np  # noqa: PLC0415
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
