"""`shardline dead`, with a queue on the memory transport and once with a real broker."""

import asyncio

import orjson
import pytest
from typer.testing import CliRunner

from engine.cli import app
from engine.contract.errors import UsageError
from engine.dead_cli import retry
from engine.local.broker import embedded_broker
from engine.transport.base import DeadLetter
from engine.transport.durable import open_queue
from engine.transport.nats import connect
from engine.transport.subjects import Subjects
from tests.decoder.local_pipeline import SUBJECTS, answer_to, pipeline


def test_a_prompt_tried_again_is_answered_under_its_old_id() -> None:
    async def main() -> None:
        async with pipeline() as here, here.transport.subscribe(SUBJECTS.tokens("r")) as inbox:
            queue = await open_queue(here.transport, SUBJECTS)
            await queue.put(b'{"id": "r", "prompt": "why", "max_tokens": 5, "top_p": 9}')
            assert orjson.loads((await inbox.get()).data)["error"]["code"] == "invalid_prompt"
            while not (letters := await queue.letters()):  # noqa: ASYNC110  nothing tells of it
                await asyncio.sleep(0)
            better = letters[0].data.replace("9", "1")
            await retry(queue, DeadLetter(letters[0].place, 1, "", better))
            while not (event := orjson.loads((await inbox.get()).data)).get("final"):
                pass
            assert event["text"] == answer_to("why", 5)
            assert await queue.letters() == []

    asyncio.run(main())


def test_a_letter_that_was_cut_is_not_sent_again() -> None:
    async def main() -> None:
        async with pipeline(whole=False) as here:
            with pytest.raises(UsageError, match="too long"):
                await retry(await open_queue(here.transport, SUBJECTS), DeadLetter(1, 1, "", "x", cut=True))

    asyncio.run(main())


@pytest.mark.broker
def test_list_show_and_retry_on_a_real_broker() -> None:
    async def bury(url: str) -> None:
        async with connect(url, name="test") as transport:
            queue = await open_queue(transport, Subjects("default", "m"))
            for data in (b'{"nonsense": 1}', b"plain"):
                await queue.put(data)
                [job] = await queue.take(1, timeout=5)
                await job.bury("because")

    async def main() -> None:
        async with embedded_broker() as url:
            await bury(url)

            async def dead(*arguments: str) -> tuple[int, str]:
                whole = ["dead", *arguments, "--nats", url, "--model", "m"]
                result = await asyncio.to_thread(lambda: CliRunner().invoke(app, whole))
                return result.exit_code, result.output

            code, listed = await dead("list")
            assert (code, len(listed.splitlines())) == (0, 2)
            assert "because" in listed
            code, shown = await dead("show", "2", "--json")
            assert (code, orjson.loads(shown)["data"]) == (0, "plain")
            assert await dead("show", "7") == (2, "error: there is no dead letter 7: see 'shardline dead list'\n")
            assert (await dead("retry"))[0] == 2
            code, retried = await dead("retry", "1", "--json")
            assert (code, orjson.loads(retried)) == (0, {"place": 1, "sequence": 3})
            assert [orjson.loads(line)["place"] for line in (await dead("list", "--json"))[1].splitlines()] == [2]
            assert (await dead("retry", "--all"))[1] == "2 is in the queue again as 4\n"
            assert await dead("list") == (0, "")

    asyncio.run(main())
