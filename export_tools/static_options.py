"""Options of `split` and `build` for the static runner."""

from typing import Annotated

import typer

from engine.contract.static import StaticLimits

Static = Annotated[bool, typer.Option("--static", help="Also for stage-run --runner static (NPU): fixed shapes.")]
Context = Annotated[int, typer.Option(help="Static: tokens that a sequence sees at most.")]
Slots = Annotated[int, typer.Option(help="Static: sequences at once, all in one inference.")]
PrefillChunk = Annotated[
    int, typer.Option(help="Static: prompt tokens of one inference, by a second graph; 0: one graph, half the memory.")
]
VerifyTokens = Annotated[int, typer.Option(help="Static: tokens of each sequence in one inference, drafts included.")]
Sinks = Annotated[
    int, typer.Option(help="Static: go on past --context, seeing the first so many tokens and the last; 0: end there.")
]


def static_limits(
    static: bool, context: int, slots: int, prefill_chunk: int, verify_tokens: int, sinks: int
) -> StaticLimits | None:
    """What --static asks for; None without it."""
    if not static:
        return None
    return StaticLimits(
        context=context, slots=slots, verify_tokens=verify_tokens, prefill_chunk=prefill_chunk, sinks=sinks
    )
