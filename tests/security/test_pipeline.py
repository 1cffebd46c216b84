"""The whole pipeline with the real model over TLS: real processes, each with the key of its own role and no other."""

import asyncio
import os
import sys
import urllib.request
from pathlib import Path

import orjson
import pytest

from engine.client.client import Client
from engine.contract.manifest import load_manifest
from engine.contract.prompt import FinalEvent
from engine.local.pipeline import KV_MEMORY
from engine.local.processes import Child, Processes
from engine.transport.nats import NatsTransport, connect
from engine.transport.subjects import Subjects
from tests.conftest import Shards
from tests.security.guarded import Guarded, guarded, run

pytestmark = [pytest.mark.broker, pytest.mark.model]
PROMPT = "The capital of Japan is"


class Roles:
    """Starts commands in the role that they are for."""

    def __init__(self, processes: Processes, broker: Guarded) -> None:
        self._processes, self._broker = processes, broker

    async def start(self, role: str, module: str, *options: str) -> Child:
        """A command of ours; key and authority come from the environment, as systemd units pass them."""
        url = self._broker.url_for(role)
        secret = {"SHARDLINE_CREDENTIALS": str(url.credentials), "SHARDLINE_TLS_CA": str(url.tls_ca), "NATS_URL": url}
        command = [sys.executable, "-m", module, *options]
        return await self._processes.start(f"{role}-{module}", command, {**os.environ, **secret})

    async def output(self, role: str, module: str, *options: str) -> str:
        """What a command prints; it must succeed."""
        child = await self.start(role, module, *options)
        assert await child.wait() == 0, child.last_words()
        return "\n".join(child.lines)

    async def chat(self, role: str, lines: str) -> str:
        """What is said to these lines; every turn must be answered."""
        url = self._broker.url_for(role)
        command = [sys.executable, "-m", "engine.cli", "chat", "--max-tokens", "4", "--nats", url]
        command += ["--credentials", str(url.credentials), "--tls-ca", str(url.tls_ca)]
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
        out, problem = await child.communicate(lines.encode())
        assert child.returncode == 0, problem.decode()
        return out.decode()


async def everybody(transport: NatsTransport, processes: int) -> set[str]:
    """Who answers when asked what runs."""
    answers: list[str] = []
    reply = transport.new_inbox()
    async with transport.subscribe(reply) as inbox:
        await transport.publish("$SRV.PING", b"", reply=reply)
        while len(answers) < processes:
            answers.append(orjson.loads((await inbox.get()).data)["name"])
    return set(answers)


async def scraped(url: str, wanted: str) -> None:
    """Return once the metrics there tell of it."""

    def get() -> str:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()

    while True:
        if wanted in await asyncio.to_thread(get):
            return
        await asyncio.sleep(0.2)  # the next heartbeat


def test_every_process_does_its_work_with_its_own_key(shards: Shards, draft: Path, tmp_path: Path) -> None:
    split = shards(2)
    model = Subjects("default", load_manifest(split).slug)

    async def main() -> None:
        async with (
            guarded(tmp_path / "broker", models=(model,), tls=True) as broker,
            Processes(tmp_path / "logs") as processes,
        ):
            roles, folder = Roles(processes, broker), ("--shards", str(split))
            memory = ("--kv-memory", KV_MEMORY, "--threads", "1")
            serving = [
                *[await roles.start(f"stage-{i}", "stages.cli", "--index", str(i), *folder, *memory) for i in (0, 1)],
                await roles.start("draft", "stages.draft_cli", "--draft", str(draft), *folder),
                await roles.start("decoder", "engine.decoder.cli", *folder, "--draft", "remote"),
                await roles.start("gateway", "engine.gateway.cli", "--port", "0"),
            ]
            ready = [await child.wait_for_line("ready") for child in serving]
            async with connect(broker.url_for("client"), name="test") as transport:
                client = Client(transport, model)
                durable = await client.complete(prompt=PROMPT, max_tokens=12, draft="model")
                [*_, now] = [event async for event in client.generate_now(prompt=PROMPT, max_tokens=12)]
            assert "Tokyo" in durable.text
            assert isinstance(now, FinalEvent)
            assert now.text == durable.text
            assert durable.usage.drafted_tokens > 0
            assert await roles.output(
                "client", "engine.cli", "prompt", "--raw", PROMPT, "--field", "max_tokens=12"
            ) == (durable.text)
            depths = orjson.loads(await roles.output("monitor", "engine.monitoring.cli", "--json"))
            assert [stage["stage"] for stage in depths["stages"]] == [0, 1]
            assert depths["prompts"]["dead"] == 0
            status = orjson.loads(await roles.output("monitor", "engine.cli", "status", "--json"))
            assert (status["model"], status["serving"]) == (model.model, True)
            monitor = await roles.start("monitor", "engine.monitoring.monitor_cli", "--metrics", "0")
            metrics = await monitor.wait_for_line("metrics")
            async with connect(broker.url_for("monitor"), name="test") as transport:
                assert await everybody(transport, 3) == {"shardline-stage", "shardline-decoder"}
            await scraped(metrics.split()[-1], f'pipeline="default/{model.model}"')
            assert await roles.chat("client", f"/help\n{PROMPT}\n")
            assert await roles.output("admin", "engine.cli", "dead", "list") == ""
            answer = await asyncio.to_thread(ask, ready[-1].split()[-1], model.model)
            assert answer["choices"][0]["text"] == durable.text
            assert not [line for line in broker.server.log.read_text().splitlines() if "Violation" in line]
            for child in processes.children:
                assert "does not let" not in child.log.read_text()

    run(main, seconds=240)


def ask(url: str, model: str) -> dict[str, list[dict[str, str]]]:
    """One completion from the gateway."""
    body = orjson.dumps({"model": model, "prompt": PROMPT, "max_tokens": 12})
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return orjson.loads(answer.read())
