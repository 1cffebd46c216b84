"""`shard-export`: make shards, check shards, prepare drafts."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
import typer
from rich.console import Console
from rich.table import Table

from engine.contract.errors import ShardlineError, UsageError
from engine.contract.manifest import load_manifest
from engine.contract.probe import load_probe
from engine.contract.quality import quality_lines
from engine.distribution.cli import pull, push, remove
from engine.options import App
from engine.service import fail
from export_tools.fleet import plan_fleet
from export_tools.placement import Goal
from export_tools.static_options import Context, PrefillChunk, Sinks, Slots, Static, VerifyTokens, static_limits

Out = Annotated[Path, typer.Option(help="Folder to write.")]
Stages = Annotated[int, typer.Option(min=0, help="How many shards.")]
Layers = Annotated[str, typer.Option(help="Layers per stage, e.g. 18,12, instead of an even plan.")]
Name = Annotated[str, typer.Option(help="Model name; goes into subjects.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing folder.")]

if TYPE_CHECKING:
    from engine.contract.static import StaticLimits
    from export_tools.compress import WeightOptions

app = App(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Cut a model into shards, check shards, prepare drafts.",
)


@app.command()
def split(
    source: Annotated[
        Path, typer.Argument(help="Folder with a stateful OpenVINO LLM or a Hugging Face one, or a .gguf file.")
    ],
    out: Out,
    stages: Stages = 0,
    layers: Layers = "",
    name: Name = "",
    no_beam_gather: Annotated[bool, typer.Option("--no-beam-gather", help="For measurements: slower.")] = False,
    force: Force = False,
    static: Static = False,
    context: Context = 1024,
    slots: Slots = 4,
    prefill_chunk: PrefillChunk = 128,
    verify_tokens: VerifyTokens = 4,
    sinks: Sinks = 0,
) -> None:
    """Cut SOURCE into shards."""
    limits = static_limits(static, context, slots, prefill_chunk, verify_tokens, sinks)
    _run(lambda: _split(source, out, stages, layers, name, not no_beam_gather, force, static=limits))


@app.command()
def build(
    source: Annotated[Path, typer.Argument(help="Hugging Face folder with safetensors, or what split takes.")],
    out: Out,
    stages: Stages = 0,
    layers: Layers = "",
    weights: Annotated[Literal["f32", "f16", "int8", "int4"], typer.Option(help="What weights are kept in.")] = "int8",
    group_size: Annotated[int, typer.Option(help="int4: weights that share a scale; -1: all of a row.")] = 128,
    ratio: Annotated[float, typer.Option(help="int4: share of the layers in 4 bits, the others in 8.")] = 1.0,
    asym: Annotated[bool, typer.Option("--asym", help="int4: with zero points, closer and slower.")] = False,
    awq: Annotated[bool, typer.Option("--awq", help="int4: spare the weights that matter to some texts.")] = False,
    no_quality: Annotated[
        bool, typer.Option("--no-quality", help="Do not measure what fewer bits cost; it takes about as long again.")
    ] = False,
    at_once: Annotated[bool, typer.Option("--at-once", help="Not stage by stage: memory for the whole model.")] = False,
    name: Name = "",
    force: Force = False,
    static: Static = False,
    context: Context = 1024,
    slots: Slots = 4,
    prefill_chunk: PrefillChunk = 128,
    verify_tokens: VerifyTokens = 4,
    sinks: Sinks = 0,
) -> None:
    """Convert SOURCE, compress its weights, cut it into shards. Needs pip install 'shardline[export]'.

    Stage by stage where the model allows it: memory for the largest stage is enough, and the same command goes on
    after an interruption.
    """
    from export_tools.compress import WeightOptions  # noqa: PLC0415  loads OpenVINO: not for --help

    def run() -> None:
        wanted = WeightOptions(
            kind=weights,
            group_size=group_size,
            ratio=ratio,
            asymmetric=asym,
            awq=awq,
        )
        limits = static_limits(static, context, slots, prefill_chunk, verify_tokens, sinks)
        _split(source, out, stages, layers, name, True, force, wanted, limits, sliced=not at_once, judge=not no_quality)

    _run(run)


def _split(
    source: Path,
    out: Path,
    stages: int,
    layers: str,
    name: str,
    beam_gather: bool,
    force: bool,
    weights: "WeightOptions | None" = None,
    static: "StaticLimits | None" = None,
    sliced: bool = False,
    judge: bool = False,
) -> None:
    from export_tools.compress import AS_THEY_ARE  # noqa: PLC0415
    from export_tools.sliced.build import try_build_sliced  # noqa: PLC0415
    from export_tools.sources.open import open_source  # noqa: PLC0415  loads OpenVINO: not for --help
    from export_tools.split import SplitOptions  # noqa: PLC0415
    from export_tools.split import split as write  # noqa: PLC0415

    def say(line: str) -> None:
        Console(stderr=True).print(line, highlight=False, soft_wrap=True)

    counts = _counts(layers)
    if not stages and not counts:
        raise UsageError("how many shards? give --stages N, or --layers 18,12")
    options = SplitOptions(
        out=out,
        stages=stages,
        layers=counts,
        name=name,
        beam_gather=beam_gather,
        weights=weights or AS_THEY_ARE,
        force=force,
        static=static,
        judge=judge,
    )
    options.check_target()
    manifest = try_build_sliced(source, options, say) if sliced else None
    if manifest is None:
        say(f"reading {source}")
        with open_source(source) as opened:
            manifest = write(opened, options, say)
    for what, value in quality_lines(manifest):
        say(f"{what}: {value}")
    print(f"{out}: {manifest.slug}, {len(manifest.stages)} stages, split {manifest.split[:12]}")


@app.command()
def plan(
    model: Annotated[Path, typer.Argument(help="Folder written by split, or what split takes.")],
    probes: Annotated[list[Path], typer.Argument(help="What 'stage-run --probe' printed on each machine.")],
    users: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each, prompt and answer.")] = 2048,
    goal: Annotated[
        Literal["throughput", "latency"], typer.Option(help="Tokens of all, or of one alone.")
    ] = "throughput",
    kv_precision: Annotated[Literal["f32", "f16", "u8"], typer.Option(help="Of the KV cache.")] = "f32",
    hop_ms: Annotated[float, typer.Option(min=0, help="One hop, where no probe reached a broker.")] = 0.5,
    keep_order: Annotated[bool, typer.Option("--keep-order", help="Stages in the order of the probes.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Also the next best, and where the time goes.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Which layers to which machine? Exact, for unequal ones, within their memory. Writes nothing."""
    wishes = {"users": users, "context": context, "kv_precision": kv_precision, "hop_ms": hop_ms}
    _run(lambda: _plan(model, probes, wishes, goal, keep_order, explain, json))


def _plan(
    model: Path, paths: list[Path], wishes: dict[str, Any], goal: Goal, keep_order: bool, explain: bool, json: bool
) -> None:
    from export_tools.plan_report import make_task, placement_dict, show  # noqa: PLC0415  loads OpenVINO

    probes = [load_probe(path) for path in paths]
    task = make_task(model, probes, **wishes)
    found = plan_fleet(task, probes, goal, keep_order=keep_order)
    if json:
        print(orjson.dumps([placement_dict(task, probes, one) for one in (found if explain else found[:1])]).decode())
    else:
        show(task, probes, found, model, explain=explain)


def _counts(layers: str) -> tuple[int, ...]:
    with suppress(ValueError):
        return tuple(int(part) for part in layers.split(",")) if layers else ()
    raise UsageError(f"--layers {layers}: numbers with commas between them, e.g. 18,12")


@app.command()
def draft(
    source: Annotated[Path, typer.Argument(help="Small model: OpenVINO or Hugging Face folder, or a .gguf file.")],
    target: Annotated[Path, typer.Option(help="Folder written by split, of the model it guesses for.")],
    out: Out,
    name: Annotated[str, typer.Option(help="Name of the draft.")] = "",
    head_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Let its head score only that many frequent tokens, which is faster; 0: all. "
            "By default all, unless SOURCE has a head_tokens.npy.",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Prepare SOURCE to draft tokens for the model in --target; refused when their tokens differ."""
    _run(lambda: _draft(source, target, out, name, head_tokens, force))


def _draft(source: Path, target: Path, out: Path, name: str, head_tokens: int | None, force: bool) -> None:
    from export_tools.draft import DraftOptions, prepare_draft  # noqa: PLC0415  loads OpenVINO: not for --help

    say = Console(stderr=True).print
    say(f"reading {source}", highlight=False)
    options = DraftOptions(target=target, out=out, name=name, head_tokens=head_tokens, force=force)
    manifest = prepare_draft(source, options, lambda line: say(line, highlight=False))
    print(f"{out}: {manifest.slug}, drafts for {target}")


app.command()(push)
app.command()(pull)
app.command()(remove)


@app.command()
def verify(
    shards: Annotated[Path, typer.Argument(help="Folder written by split.")],
    against: Annotated[Path | None, typer.Option(help="The source, if it is no longer where it was.")] = None,
    runner: Annotated[Literal["paged", "stateful", "static"], typer.Option(help="Which runner to check.")] = "paged",
    profile: Annotated[Literal["exact", "fast"], typer.Option(help="Under which settings.")] = "exact",
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Check digests, and the chain of shards against the whole model. Exit code 1 when it may not serve."""
    _run(lambda: _verify(shards, against, runner, profile, json))


def _verify(
    shards: Path,
    against: Path | None,
    runner: Literal["paged", "stateful", "static"],
    profile: Literal["exact", "fast"],
    json: bool,
) -> None:
    from export_tools.verify import verify as check  # noqa: PLC0415
    from stages.settings import RunnerOptions  # noqa: PLC0415

    report = check(shards, RunnerOptions(kind=runner, profile=profile), against)
    if json:
        print(orjson.dumps(report.as_dict()).decode())
    else:
        table = Table("check", "result", title=f"{shards}: {report.stages} stages, {runner}, {profile}")
        table.add_row("files", "as in the manifest")
        table.add_row("largest logit difference", f"{report.largest_difference:.3g} over {report.positions} positions")
        table.add_row("greedy tokens", f"{'equal' if report.tokens_equal else 'DIFFERENT'} ({report.greedy_tokens})")
        fused = ", ".join(f"{a} of {b}" for a, b in zip(report.fused, report.layers, strict=True))
        if runner != "static":  # compared with the stateful whole; nothing fuses
            table.add_row("fused attention per stage", fused)
            table.add_row("fused operations", "as in the whole" if report.operations_equal else "not as in the whole")
        for what, value in quality_lines(load_manifest(shards)):
            table.add_row(what, value)
        table.add_row("may serve", "yes" if report.good else "NO")
        Console().print(table)
    raise typer.Exit(0 if report.good else 1)


def _run(command: Callable[[], None]) -> None:
    try:
        command()
    except ShardlineError as error:
        fail(error)
    except OSError as error:
        fail(ShardlineError(f"{error.filename or ''}: {error.strerror or error}"))


if __name__ == "__main__":
    app()
