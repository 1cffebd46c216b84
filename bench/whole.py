"""The whole model in openvino-genai, in a process of its own that is pinned to given cores.

    python -m bench.whole llm|batching FOLDER CORES KV_PRECISION [THREADS]

Reads one JSON object a line: {"prompts": [...], "tokens": n}; answers one: {"tokens": n, "seconds": s, "ids": [...]}.
`seconds` runs from the first call to the last token, `decode` is tokens per second after the first token (llm only)."""

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    kind, folder, cores, precision = sys.argv[1:5]
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    import openvino_genai as genai  # noqa: PLC0415  after pinning: the plugin looks at the affinity it finds

    threads = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    config = {"INFERENCE_NUM_THREADS": threads, "KV_CACHE_PRECISION": precision}
    run = _llm(genai, folder, config) if kind == "llm" else _batching(genai, folder, config)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(run(job["prompts"], job["tokens"])), flush=True)


def _settings(genai: Any, tokens: int) -> Any:
    settings = genai.GenerationConfig()
    settings.max_new_tokens, settings.ignore_eos, settings.do_sample = tokens, True, False
    settings.apply_chat_template = False
    return settings


def _llm(genai: Any, folder: str, config: dict[str, Any]) -> Any:
    pipeline = genai.LLMPipeline(folder, "CPU", ATTENTION_BACKEND="SDPA", **config)
    tokenizer = pipeline.get_tokenizer()

    def run(prompts: list[str], tokens: int) -> dict[str, Any]:
        ids, decode = [], []
        started = time.perf_counter()
        for prompt in prompts:
            inputs = tokenizer.encode(prompt, add_special_tokens=False)
            result = pipeline.generate(inputs, _settings(genai, tokens))
            ids.append(list(result.tokens[0]))
            decode.append(1e3 / result.perf_metrics.get_tpot().mean)
        seconds = time.perf_counter() - started
        return {"tokens": sum(map(len, ids)), "seconds": seconds, "ids": ids, "decode": decode}

    return run


def _batching(genai: Any, folder: str, config: dict[str, Any]) -> Any:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs = 1, 64
    scheduler.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", config)
    tokenizer = pipeline.get_tokenizer()

    def run(prompts: list[str], tokens: int) -> dict[str, Any]:
        started = time.perf_counter()
        inputs = [tokenizer.encode(prompt, add_special_tokens=False).input_ids for prompt in prompts]
        results = pipeline.generate(inputs, [_settings(genai, tokens)] * len(prompts))
        seconds = time.perf_counter() - started
        ids = [list(result.m_generation_ids[0]) for result in results]
        return {"tokens": sum(map(len, ids)), "seconds": seconds, "ids": ids}

    return run


if __name__ == "__main__":
    main()
