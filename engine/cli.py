"""`shardline`: try it, ask it, look at it."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from engine.chat import chat as talk
from engine.client.api import Shardline
from engine.client.client import Client
from engine.client.discover import reach
from engine.contract.errors import ShardlineError, UsageError
from engine.contract.manifest import load_manifest
from engine.contract.prompt import FinalEvent, encode_event
from engine.dead_cli import app as dead
from engine.doctor.cli import doctor
from engine.gateway.keys import new_key
from engine.local.broker_config import BrokerPlan, write_broker
from engine.local.demo import PROMPTS, run_demo
from engine.monitoring.cli import show_status, show_top
from engine.options import DEFAULT_NATS, App, Model, Nats
from engine.service import INTERRUPTED, fail, run_process
from engine.transport.roles import ALL_KINDS
from engine.transport.subjects import Subjects

app = App(rich_markup_mode=None, no_args_is_help=True, help="One language model, several machines.")
app.add_typer(dead, name="dead")
app.command()(doctor)
Deployment = Annotated[str, typer.Option(help="As given to the stages and the decoder.")]


@app.command()
def demo(
    stages: Annotated[int, typer.Option(min=1, help="How many shards, each in a process of its own.")] = 2,
    prompt: Annotated[list[str] | None, typer.Option(help="Instead of the four built-in ones; repeat it.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Per answer.")] = 64,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the pipeline running until Ctrl-C.")] = False,
) -> None:
    """Cut a real model into shards and answer several prompts at once, all on this machine."""
    run_process(
        lambda: run_demo(
            prompt or PROMPTS,
            stages=stages,
            max_tokens=max_tokens,
            keep=keep,
            console=Console(),
            progress=Console(stderr=True),
        )
    )


@app.command()
def prompt(
    text: Annotated[list[str] | None, typer.Argument(help="Prompts; without any, one per line of stdin.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; repeat it.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 (default): the likeliest token; higher: livelier.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Only tokens that make up this share of the probability.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="Any other field of a prompt, NAME=JSON, e.g. top_k=40; repeat it.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end of the answer.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Send the text as it is, without the chat template.")] = False,
    now: Annotated[bool, typer.Option("--now", help="Request/reply instead of the durable queue.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print each final event as one line.")] = False,
    nats: Nats = DEFAULT_NATS,
    deployment: Deployment = "default",
    model: Model = "",
) -> None:
    """Ask one or more prompts and stream the answers. Exit code 0 only if all succeeded."""
    options: dict[str, Any] = {
        "max_tokens": max_tokens,
        "stop": stop,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
        "ignore_eos": ignore_eos or None,
        **dict(map(parse_field, field or [])),
    }
    fields = {name: value for name, value in options.items() if value is not None}
    run_process(lambda: ask(text or read_prompts(), fields, nats, deployment, model, raw=raw, now=now, json=json))


@app.command()
def status(
    nats: Nats = DEFAULT_NATS,
    deployment: Deployment = "default",
    model: Model = "",
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line, one for each model.")] = False,
) -> None:
    """Show stages, decoder and queues of every model once.

    Exit codes: 0 all of them serve, 1 no broker, 2 wrong usage, 3 one of them would not answer a prompt.
    """
    run_process(lambda: show_status(nats, deployment, model, json=json))


@app.command()
def top(nats: Nats = DEFAULT_NATS, deployment: Deployment = "default", model: Model = "") -> None:
    """Watch a pipeline at work: stages, queue, tokens/s, drafts, open requests. Ctrl-C ends it."""
    try:
        run_process(lambda: show_top(nats, deployment, model, Console()))
    except SystemExit as ended:
        if ended.code != INTERRUPTED:
            raise


@app.command()
def chat(
    system: Annotated[str, typer.Option(help="What the model is told before everything else.")] = "",
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 (default): the likeliest token.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    nats: Nats = DEFAULT_NATS,
    deployment: Deployment = "default",
    model: Model = "",
) -> None:
    """Talk to a model; it remembers the conversation. /reset begins anew, /exit ends, Ctrl-C stops an answer.

    Lines of standard input are turns where that is no terminal. Exit codes: 0 all turns were answered, 1 one was not,
    or no broker, 2 wrong usage or no model.
    """
    options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    fields = {name: value for name, value in options.items() if value is not None}
    try:
        well = talk(lambda: Shardline(nats, deployment=deployment, model=model), system, fields)
    except ShardlineError as error:
        fail(error)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    else:
        raise typer.Exit(0 if well else 1)


@app.command("api-key")
def api_key(
    name: Annotated[str, typer.Argument(help="Whose key it is: one word.")],
    file: Annotated[Path, typer.Option(help="Where its hash is kept; for gateway-run --api-keys.")],
    concurrent: Annotated[int, typer.Option(min=0, help="Requests at once; 0: no limit.")] = 0,
    per_minute: Annotated[int, typer.Option(min=0, help="Requests in a minute; 0: no limit.")] = 0,
) -> None:
    """Make an API key for the gateway and print it; it is kept nowhere else. Delete its line to revoke it."""
    try:
        print(new_key(file, name, concurrent=concurrent, per_minute=per_minute))
    except UsageError as error:
        fail(error)


@app.command("broker-config")
def broker_config(
    out: Annotated[Path, typer.Option(help="Folder to write; keys and the authority in it stay as they are.")],
    shards: Annotated[list[Path] | None, typer.Option(help="A model that is served: its split; repeat it.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Or its slug, with --stages; repeat it.")] = None,
    stages: Annotated[int, typer.Option(min=0, help="Of the model with the most; 0: as --shards says.")] = 0,
    deployment: Deployment = "default",
    roles: Annotated[str, typer.Option(help="With commas between; client-NAME is one more client.")] = ",".join(
        ALL_KINDS
    ),
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address that others use; none: loopback only.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where the broker listens.")] = 4222,
    tls: Annotated[bool, typer.Option("--tls", help="Certificates of an authority of your own.")] = False,
    days: Annotated[int, typer.Option(min=1, help="That the broker's certificate is valid.")] = 397,
    cluster: Annotated[bool, typer.Option("--cluster", help="A broker on every --host.")] = False,
    leaf: Annotated[bool, typer.Option("--leaf", help="Brokers of other sites may connect.")] = False,
) -> None:
    """Write a nats-server configuration with a key and the least permissions for each role."""
    try:
        manifests = [load_manifest(folder) for folder in shards or []]
        slugs = {*(manifest.slug for manifest in manifests), *(model or [])}
        plan = BrokerPlan(
            out=out,
            models=tuple(Subjects(deployment, slug) for slug in sorted(slugs)),
            stages=stages or max((len(manifest.stages) for manifest in manifests), default=0),
            roles=tuple(filter(None, roles.replace(" ", "").split(","))),
            hosts=tuple(host or ()),
            port=port,
            tls=tls,
            days=days,
            cluster=cluster,
            leaf=leaf,
        )
        for role in write_broker(plan):
            print(out / "keys" / f"{role}.nk")
    except ShardlineError as error:
        fail(error)


def parse_field(text: str) -> tuple[str, Any]:
    """A field of a prompt from NAME=JSON. Raises UsageError."""
    name, mark, value = text.partition("=")
    try:
        if not (name and mark):
            raise ValueError("no '='")
        return name, orjson.loads(value)
    except ValueError as error:
        raise UsageError(
            f"--field {text!r} is not NAME=JSON ({error}); a text needs quotes: name='\"a text\"'"
        ) from error


def read_prompts() -> list[str]:
    """One prompt per line of standard input. Raises UsageError when there is none."""
    prompts = [] if sys.stdin.isatty() else [line.strip() for line in sys.stdin if line.strip()]
    if not prompts:
        raise UsageError('nothing to ask: shardline prompt "…", or one prompt per line on standard input')
    return prompts


async def ask(
    prompts: list[str],
    fields: dict[str, Any],
    nats: str,
    deployment: str,
    model: str,
    *,
    raw: bool,
    now: bool,
    json: bool,
) -> None:
    """Ask all prompts at once; answers are printed in the order of the prompts, the first one streams."""
    async with reach(nats, deployment, model, name="prompt") as (transport, subjects):
        client = Client(transport, subjects)
        whole = [_fields(text, fields, raw=raw) for text in prompts]
        finals = await _stream(client, whole, now=now, quiet=json)
    failed = [final for final in finals if final.error]
    if json:
        for final in finals:
            print(encode_event(final).decode())
    for final in (final for final in finals if final.mixed):
        print(f"note: not all of answer {final.request} was computed alike: a worker was replaced", file=sys.stderr)
    if failed:
        codes = ", ".join(f"{f.error['code']}: {f.error['message']}" for f in failed if f.error)
        raise ShardlineError(f"{len(failed)} of {len(finals)} prompts failed ({codes})")


def _fields(text: str, fields: dict[str, Any], *, raw: bool) -> dict[str, Any]:
    return {**fields, **({"prompt": text} if raw else {"messages": [{"role": "user", "content": text}]})}


async def _stream(client: Client, whole: list[dict[str, Any]], *, now: bool, quiet: bool) -> list[FinalEvent]:
    turns = [asyncio.Event() for _ in range(len(whole) + 1)]
    turns[0].set()
    async with asyncio.TaskGroup() as tasks:
        answers = [
            tasks.create_task(_answer(client, fields, turns[i], turns[i + 1], now=now, quiet=quiet))
            for i, fields in enumerate(whole)
        ]
    return [answer.result() for answer in answers]


async def _answer(
    client: Client, fields: dict[str, Any], turn: asyncio.Event, after: asyncio.Event, *, now: bool, quiet: bool
) -> FinalEvent:
    """Stream one answer; its text waits until the answers before it are printed."""
    held, events = "", client.generate_now(**fields) if now else client.generate(**fields)
    async for event in events:
        if isinstance(event, FinalEvent):
            await turn.wait()
            _print(held, end="\n", quiet=quiet)
            after.set()
            return event
        held += event.text
        if turn.is_set():
            _print(held, end="", quiet=quiet)
            held = ""
    raise ShardlineError("the answer ended without a final event")


def _print(text: str, *, end: str, quiet: bool) -> None:
    if not quiet:
        print(text, end=end, flush=True)


if __name__ == "__main__":
    app()
