"""Load for a running pipeline: n users at once, each one prompt, greedy, a fixed number of tokens."""

import asyncio
import time
from typing import Any

from engine.client.client import Client
from engine.contract.prompt import FinalEvent
from engine.transport.base import Transport
from engine.transport.subjects import Subjects

KINDS = ("facts", "reasoning", "code", "list", "creative", "technical", "chat", "translate")
PROMPTS = (  # one of each kind
    "What is the capital of Japan and why is it famous?",
    "If I have three apples and eat one, then buy five more, how many do I have? Explain.",
    "Write a Python function that returns the factorial of n.",
    "List five benefits of regular exercise.",
    "Write a short story about a lighthouse keeper.",
    "Explain how a hash table works.",
    "Hi! Can you help me plan my weekend?",
    "Translate to French: The weather is nice today.",
)


def prompts_for(users: int, template: str) -> list[str]:
    """Raw prompts, the chat template already applied; `{}` in the template is the question."""
    return [template.replace("{}", PROMPTS[i % len(PROMPTS)]) for i in range(users)]


async def run_users(
    transport: Transport, subjects: Subjects, prompts: list[str], tokens: int, **fields: object
) -> dict[str, Any]:
    """Ask all prompts at once; tokens, seconds, decode speed per user (tokens/s after the first token), drafts."""
    client = Client(transport, subjects)

    async def one(prompt: str) -> FinalEvent:
        return await client.complete(prompt=prompt, max_tokens=tokens, ignore_eos=True, **fields)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        answers = [tasks.create_task(one(prompt)) for prompt in prompts]
    seconds = time.perf_counter() - started
    finals = [answer.result() for answer in answers]
    decode = [(f.usage.completion_tokens - 1) / (f.timings.total - f.timings.first_token) * 1e3 for f in finals]
    return {
        "tokens": sum(f.usage.completion_tokens for f in finals),
        "seconds": seconds,
        "ids": [list(f.ids) for f in finals],
        "decode": decode,
        "drafted": sum(f.usage.drafted_tokens for f in finals),
        "accepted": sum(f.usage.accepted_tokens for f in finals),
    }
