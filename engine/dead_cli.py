"""`shardline dead`: prompts that were given up, and giving them another chance."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated

import orjson
import typer

from engine.client.discover import reach
from engine.contract.errors import UsageError
from engine.options import DEFAULT_NATS, App, Deployment, Model, Nats
from engine.service import run_process
from engine.transport.base import DeadLetter, WorkQueue
from engine.transport.durable import open_queue

app = App(rich_markup_mode=None, no_args_is_help=True, help="Prompts that were given up, with reasons.")
SHOWN = 60  # characters of a prompt in a list
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


@app.command("list")
def list_letters(
    json: Json = False, nats: Nats = DEFAULT_NATS, deployment: Deployment = "default", model: Model = ""
) -> None:
    """One line for each dead letter: its number, why, and how the prompt begins."""

    async def show(queue: WorkQueue) -> None:
        for letter in await queue.letters():
            short = " ".join(letter.data.split())[:SHOWN]
            print(as_json(letter) if json else f"{letter.place:6d}  {letter.reason}  {short}")

    run_process(lambda: with_queue(nats, deployment, model, show))


@app.command("show")
def show_letter(
    number: Annotated[int, typer.Argument(help="As 'shardline dead list' shows it.")],
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    deployment: Deployment = "default",
    model: Model = "",
) -> None:
    """A dead letter with its whole prompt."""

    async def show(queue: WorkQueue) -> None:
        [letter] = chosen(await queue.letters(), [number])
        cut = "\n(cut off: it was too long to be kept whole)" if letter.cut else ""
        text = f"number   {letter.place}\nprompt   {letter.sequence}\nreason   {letter.reason}\n\n{letter.data}{cut}"
        print(as_json(letter) if json else text)

    run_process(lambda: with_queue(nats, deployment, model, show))


@app.command("retry")
def retry_letters(
    numbers: Annotated[list[int] | None, typer.Argument(help="As 'shardline dead list' shows them.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    json: Json = False,
    nats: Nats = DEFAULT_NATS,
    deployment: Deployment = "default",
    model: Model = "",
) -> None:
    """Put dead letters back into the queue, under their old ids."""
    if bool(numbers) == every:
        raise typer.BadParameter("name the numbers of dead letters, or --all")

    async def again(queue: WorkQueue) -> None:
        letters = await queue.letters()
        for letter in chosen(letters, numbers or []) if numbers else [one for one in letters if not one.cut]:
            sequence = await retry(queue, letter)
            fields = {"place": letter.place, "sequence": sequence}
            print(orjson.dumps(fields).decode() if json else f"{letter.place} is in the queue again as {sequence}")

    run_process(lambda: with_queue(nats, deployment, model, again))


async def retry(queue: WorkQueue, letter: DeadLetter) -> int:
    """Put a prompt back into the queue, then forget the letter; its new place. Raises UsageError, BrokerError."""
    if letter.cut:
        raise UsageError(f"dead letter {letter.place} was too long to be kept whole: its sender must send it again")
    stored = await queue.put(letter.data.encode())
    await queue.remove_letter(letter.place)
    return stored.sequence


def chosen(letters: list[DeadLetter], numbers: list[int]) -> list[DeadLetter]:
    """Those with these numbers. Raises UsageError for one that is not there."""
    by_place = {letter.place: letter for letter in letters}
    if missing := [number for number in numbers if number not in by_place]:
        raise UsageError(f"there is no dead letter {missing[0]}: see 'shardline dead list'")
    return [by_place[number] for number in numbers]


def as_json(letter: DeadLetter) -> str:
    """A dead letter as one line."""
    return orjson.dumps(asdict(letter)).decode()


async def with_queue(nats: str, deployment: str, model: str, act: Callable[[WorkQueue], Awaitable[None]]) -> None:
    """Connect and do something with the queue of one model."""
    async with reach(nats, deployment, model, name="dead") as (transport, subjects):
        await act(await open_queue(transport, subjects))
