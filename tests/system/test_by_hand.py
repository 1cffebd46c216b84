"""What README shows, done by a script: real commands, a real broker, any NATS client; and what a user does wrong."""

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Coroutine, Generator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import nats
import orjson
import pytest

from engine.contract.manifest import MANIFEST_NAME
from engine.local.broker import find_server
from engine.local.processes import Child, Processes
from tests.conftest import ROOT, Shards

pytestmark = [pytest.mark.model, pytest.mark.broker]
BIN = Path(sysconfig.get_path("scripts"))
SUBJECT = "shardline.default.smollm2-135m-instruct"
T = TypeVar("T")


def command(name: str, *words: str) -> list[str]:
    return [str(BIN / name), *words]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(*words: str, text: str = "", expect: int = 0) -> subprocess.CompletedProcess[str]:
    """A command to its end; a foreseeable mistake is one line on stderr and never a traceback."""
    done = subprocess.run(list(words), input=text, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


class ByHand:
    """A pipeline started as README says, on one event loop that the tests share."""

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        self._runner, self.url = runner, url

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def publish(self, data: bytes, request: str = "") -> list[dict[str, Any]]:
        """Publish with a bare NATS client; events until the final one. Without an id the sequence number names it."""
        client = await nats.connect(self.url)
        events: list[dict[str, Any]] = []
        subscription = await client.subscribe(f"{SUBJECT}.tokens.{request or '*'}")
        await client.publish(f"{SUBJECT}.prompt", data)
        while not events or not events[-1].get("final"):
            events.append(orjson.loads((await subscription.next_msg(timeout=60)).data))
        await client.close()
        return events


@pytest.fixture(scope="module")
def by_hand(shards: Shards, draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[ByHand]:
    home, folder, port = tmp_path_factory.mktemp("by-hand"), shards(2), free_port()
    url = f"nats://127.0.0.1:{port}"

    async def start(stack: AsyncExitStack) -> None:
        processes = await stack.enter_async_context(Processes(home / "logs"))
        options = ["--shards", str(folder), "--nats", url]
        # the wrong way round: decoder, draft model, last stage, first stage, and the broker at the end
        decoder = await processes.start("decoder", command("decoder-run", "--draft", "remote", *options))
        drafts = await processes.start("draft", command("draft-run", "--draft", str(draft), *options))
        stages = [
            await processes.start(f"stage-{i}", command("stage-run", "--index", str(i), "--threads", "1", *options))
            for i in (1, 0)
        ]
        await waiting_for(decoder, "waiting for the broker")
        config = home / "single.conf"  # as shipped, but its data is not left in the project
        config.write_text((ROOT / "deploy/nats/single.conf").read_text().replace("./nats-data", str(home / "store")))
        ports = ["-p", str(port), "-m", str(free_port())]
        await processes.start("nats-server", [str(find_server()), "-c", str(config), *ports])
        for child in (*stages, drafts, decoder):
            await child.wait_for_line("ready")

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        runner.run(asyncio.wait_for(start(stack), 90))
        yield ByHand(runner, url)
        runner.run(stack.aclose())


async def waiting_for(child: Child, words: str) -> None:
    async with asyncio.timeout(30):
        while words not in child.log.read_text():
            assert child.returncode is None, child.log.read_text()
            await asyncio.sleep(0.05)  # a log file tells nobody that it has grown


def test_plain_text_from_any_client_is_answered(by_hand: ByHand) -> None:
    events = by_hand.do(by_hand.publish(b"What is the capital of Japan?"))
    final = events[-1]
    assert "Tokyo" in final["text"]
    assert final["finish_reason"] in ("stop", "length")
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert "".join(event["text"] for event in events[:-1]) == final["text"]
    assert final["usage"]["prompt_tokens"] > 0
    assert set(final["timings"]) == {"queued", "first_token", "total"}


def test_json_with_openai_names_is_answered(by_hand: ByHand) -> None:
    fields = {"id": "json-1", "messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 12}
    final = by_hand.do(by_hand.publish(orjson.dumps(fields), "json-1"))[-1]
    assert final["usage"]["completion_tokens"] <= 12
    assert len(final["ids"]) == final["usage"]["completion_tokens"]


def test_a_stop_string_ends_the_text_before_it(by_hand: ByHand) -> None:
    fields = {"id": "stop-1", "prompt": "1, 2, 3, 4, 5,", "max_tokens": 30, "stop": [" 8"], "ignore_eos": True}
    final = by_hand.do(by_hand.publish(orjson.dumps(fields), "stop-1"))[-1]
    assert final["finish_reason"] == "stop"
    assert " 8" not in final["text"]


def test_shardline_prompt_streams_and_succeeds(by_hand: ByHand) -> None:
    done = run(*command("shardline", "prompt", "--nats", by_hand.url, "--max-tokens", "8", "Say hello."))
    assert done.stdout.strip()


def test_shardline_prompt_takes_lines_and_prints_one_final_event_each(by_hand: ByHand) -> None:
    words = command("shardline", "prompt", "--nats", by_hand.url, "--json", "--max-tokens", "4")
    lines = run(*words, text="Say one.\nSay two.\n").stdout.splitlines()
    finals = [json.loads(line) for line in lines]
    assert [final["final"] for final in finals] == [True, True]


def test_request_and_reply_gives_what_the_queue_gives(by_hand: ByHand) -> None:
    words = command("shardline", "prompt", "--nats", by_hand.url, "--json", "--max-tokens", "8", "Why is the sky blue?")
    queued, asked = (json.loads(run(*words, *extra).stdout) for extra in ([], ["--now"]))
    assert queued["ids"] == asked["ids"]


def test_queue_depth_is_one_object(by_hand: ByHand) -> None:
    depths = json.loads(run(*command("queue-depth", "--nats", by_hand.url, "--json")).stdout)
    assert [stage["state"] for stage in depths["stages"]] == ["serving", "serving"]
    assert all("step_ms_p50" in stage and "busy_share" in stage for stage in depths["stages"])
    assert depths["decoder"]["free_blocks"] == depths["decoder"]["blocks"]
    assert set(depths["prompts"]) == {"pending", "working", "redelivered", "dead", "oldest"}


def test_drafts_of_another_process_are_accepted_and_change_no_text(by_hand: ByHand) -> None:
    asked = {"messages": [{"role": "user", "content": "List five benefits of regular exercise."}], "max_tokens": 64}

    def final(name: str, **drafts: Any) -> dict[str, Any]:
        return by_hand.do(by_hand.publish(orjson.dumps(asked | drafts | {"id": name}), name))[-1]

    plain, drafted = final("plain", draft="none"), final("drafted", draft="model", draft_tokens=3)
    assert (drafted["text"], drafted["ids"]) == (plain["text"], plain["ids"])
    assert plain["usage"]["drafted_tokens"] == 0
    assert drafted["usage"]["accepted_tokens"] > 0.3 * drafted["usage"]["drafted_tokens"] > 10


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b" ", "invalid_prompt"),
        (b"\xff\xfe", "invalid_prompt"),
        (b'{"prompt": "x"', "invalid_prompt"),
        (b'{"prompt": "x", "max_tokens": 0}', "invalid_prompt"),
        (b'{"prompt": "x", "max_tokens": -1}', "invalid_prompt"),
        (b'{"prompt": "x", "colour": "red"}', "unknown_field"),
        (b"word " * 9000, "prompt_too_long"),
    ],
)
def test_a_bad_prompt_ends_in_an_error_event(by_hand: ByHand, data: bytes, code: str) -> None:
    final = by_hand.do(by_hand.publish(data))[-1]
    assert (final["finish_reason"], final["error"]["code"]) == ("error", code)
    assert final["error"]["message"]


def test_a_refused_prompt_makes_the_command_fail(by_hand: ByHand) -> None:
    words = ["--nats", by_hand.url, "--max-tokens", "0", "x"]
    done = run(*command("shardline", "prompt", *words), expect=1)
    assert "max_tokens" in done.stderr


def test_a_prompt_above_max_payload_is_refused_where_it_is_sent(by_hand: ByHand) -> None:
    done = run(*command("shardline", "prompt", "--nats", by_hand.url), text="word " * 2_000_000, expect=1)
    assert "max_payload" in done.stderr


def test_a_second_worker_for_a_stage_is_refused_by_name(by_hand: ByHand, shards: Shards) -> None:
    words = ["--index", "0", "--shards", str(shards(2)), "--nats", by_hand.url]
    done = run(*command("stage-run", *words), expect=1)
    assert "error: stage 0" in done.stderr


def test_a_prompt_for_nobody_says_what_to_start(by_hand: ByHand) -> None:
    done = run(*command("shardline", "prompt", "--nats", by_hand.url, "--deployment", "empty", "x"), expect=2)
    assert "decoder-run" in done.stderr


def altered(shards: Shards, tmp_path: Path) -> Path:
    """A copy of a split that a test may damage."""
    return Path(shutil.copytree(shards(2), tmp_path / "split"))


def stage_run(folder: Path, index: int = 0) -> str:
    words = ["--index", str(index), "--shards", str(folder), "--nats", "nats://127.0.0.1:1"]
    return run(*command("stage-run", *words), expect=1).stderr.splitlines()[-1]


def test_an_altered_shard_is_refused(shards: Shards, tmp_path: Path) -> None:
    folder = altered(shards, tmp_path)
    path = folder / "stage0" / "openvino_model.bin"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    assert "sha256" in stage_run(folder)


def test_a_missing_shard_is_refused(shards: Shards, tmp_path: Path) -> None:
    folder = altered(shards, tmp_path)
    (folder / "stage1" / "openvino_model.bin").unlink()
    assert "missing" in stage_run(folder, 1)


def test_shards_of_two_splits_are_refused(shards: Shards, tmp_path: Path) -> None:
    folder = altered(shards, tmp_path)
    shutil.rmtree(folder / "stage1")
    shutil.copytree(shards(3) / "stage1", folder / "stage1")
    assert "differs from the manifest" in stage_run(folder, 1)


def test_an_unknown_index_is_refused(shards: Shards) -> None:
    assert "2 stages, 0 to 1" in stage_run(shards(2), 7)


def test_a_manifest_of_a_newer_schema_is_refused(shards: Shards, tmp_path: Path) -> None:
    folder = altered(shards, tmp_path)
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest | {"schema": 99}))
    assert "schema 99" in stage_run(folder)


def test_a_folder_without_shards_is_refused(tmp_path: Path) -> None:
    assert "shard-export split" in stage_run(tmp_path)


def test_commands_without_a_broker_say_so() -> None:
    done = run(*command("queue-depth", "--nats", "nats://127.0.0.1:1"), expect=1)
    assert "no broker" in done.stderr


def test_a_broker_without_jetstream_is_named_as_such(shards: Shards, tmp_path: Path) -> None:
    port = free_port()

    async def main() -> tuple[int, str]:
        async with asyncio.timeout(60), Processes(tmp_path) as processes:
            await processes.start("nats-server", [str(find_server()), "-a", "127.0.0.1", "-p", str(port)])
            options = ["--shards", str(shards(2)), "--nats", f"nats://127.0.0.1:{port}"]
            decoder = await processes.start("decoder", command("decoder-run", *options))
            return await decoder.wait(), decoder.last_words()

    code, words = asyncio.run(main())
    assert code == 1
    assert "JetStream" in words


def test_verify_compares_a_split_with_its_source(shards: Shards, demo_model: Path) -> None:
    words = command("shard-export", "verify", str(shards(2)), "--against", str(demo_model), "--json")
    report = json.loads(run(*words).stdout)
    assert report["good"]
    assert report["largest_difference"] == 0
    assert report["operations_equal"]


def test_verify_refuses_another_source(shards: Shards, tmp_path: Path) -> None:
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    run(*command("shard-export", "verify", str(shards(2)), "--against", str(tmp_path / "other.gguf")), expect=2)


def test_shards_without_the_gather_are_found_not_fused(demo_model: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "bare")
    run(*command("shard-export", "split", str(demo_model), "--stages", "2", "--out", out, "--no-beam-gather"))
    words = command("shard-export", "verify", out, "--against", str(demo_model), "--runner", "stateful", "--json")
    assert json.loads(run(*words, expect=1).stdout)["fused"] == [0, 0]


def test_the_module_form_of_a_command_is_the_command() -> None:
    assert "stage" in run(sys.executable, "-m", "stages.cli", "--help").stdout.lower()
