"""For each role, on a real broker: what it may not say or hear, it cannot; what it may, it can."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from engine.contract.errors import BrokerError
from engine.transport.address import inbox_of
from engine.transport.durable import open_events, open_queue
from engine.transport.nats import NatsTransport, connect
from engine.transport.nats_refusals import RefusedError
from engine.transport.roles import ALL_KINDS, Grant, expand, grant
from engine.transport.subjects import Subjects
from tests.security.guarded import MODEL, Guarded, guarded, run

pytestmark = pytest.mark.broker
ROOT, OTHER = MODEL.root, "shardline.default.other"
PROMPTS, DEAD, EVENTS = MODEL.prompt_stream, MODEL.dead_stream, MODEL.event_stream
API = "$JS.API"
SAY: dict[str, str] = {  # what is said in the deployment, by a name for it
    "a step to stage 0": f"{ROOT}.stage.0.7",
    "a step to stage 1": f"{ROOT}.stage.1.7",
    "a step of another model": f"{OTHER}.stage.1.7",
    "a result": f"{ROOT}.done.d.7",
    "an opening of stage 0": f"{ROOT}.control.stage.0.7",
    "a measurement of the way to oneself": MODEL.probe(7),
    "a sign of life of stage 0": f"{ROOT}.heartbeat.stage.0",
    "a sign of life of stage 1": f"{ROOT}.heartbeat.stage.1",
    "a sign of life of a decoder": f"{ROOT}.heartbeat.decoder.d",
    "a prompt": MODEL.prompt,
    "a question": MODEL.generate,
    "a wish to stop": MODEL.cancel,
    "a token": MODEL.tokens("r"),
    "an event": f"{MODEL.events_root}.r",
    "a dead letter": MODEL.dead,
    "a question for drafts": MODEL.draft,
    "the lease": f"$KV.{MODEL.lease_bucket}.{Subjects.lease_key('main')}",
    "the lease of a second pipeline": f"$KV.{MODEL.lease_bucket}.{Subjects.lease_key('two')}",
    "reading the lease of a second pipeline": (
        f"{API}.DIRECT.GET.KV_{MODEL.lease_bucket}.$KV.{MODEL.lease_bucket}.{Subjects.lease_key('two')}"
    ),
    "making a stream": f"{API}.STREAM.CREATE.{PROMPTS}",
    "making any stream": f"{API}.STREAM.CREATE.MINE",
    "removing a stream": f"{API}.STREAM.DELETE.{PROMPTS}",
    "emptying a stream": f"{API}.STREAM.PURGE.{PROMPTS}",
    "finding a stream": f"{API}.STREAM.INFO.{PROMPTS}",
    "reading prompts": f"{API}.STREAM.MSG.GET.{PROMPTS}",
    "reading dead letters": f"{API}.STREAM.MSG.GET.{DEAD}",
    "reading events": f"{API}.DIRECT.GET.{EVENTS}",
    "taking prompts": f"{API}.CONSUMER.MSG.NEXT.{PROMPTS}.decoder",
    "acknowledging a prompt": f"$JS.ACK.{PROMPTS}.decoder.1.1.1.1.0",
    "asking what runs": "$SRV.PING",
    "reading the model's files": f"{API}.DIRECT.GET.{MODEL.files_stream}.{MODEL.files}.chunk.x.0",
    "finding the model's files": f"{API}.STREAM.INFO.{MODEL.files_stream}",
    "reading the newest of the model's files": f"{API}.STREAM.MSG.GET.{MODEL.files_stream}",
    "asking who keeps files": f"{API}.STREAM.NAMES",
    "writing the model's files": f"{MODEL.files}.chunk.x.0",
    "making room for the model's files": f"{API}.STREAM.CREATE.{MODEL.files_stream}",
    "removing the model's files": f"{API}.STREAM.PURGE.{MODEL.files_stream}",
    "asking what JetStream holds": f"{API}.INFO",
    "asking the broker itself": "$SYS.REQ.SERVER.PING",
    "anything": "elsewhere",
}
HEAR: dict[str, str] = {
    "steps to stage 0": f"{ROOT}.stage.0.*",
    "steps to stage 1": f"{ROOT}.stage.1.*",
    "results": f"{ROOT}.done.d.*",
    "openings of stage 0": f"{ROOT}.control.stage.0.7",
    "measurements of the way to oneself": MODEL.probe(7),
    "signs of life": MODEL.heartbeats,
    "decoders' signs of life": f"{ROOT}.heartbeat.decoder.*",
    "prompts": MODEL.prompt,
    "questions": MODEL.generate,
    "wishes to stop": MODEL.cancel,
    "tokens of a request": MODEL.tokens("r"),
    "events": f"{MODEL.events_root}.*",
    "questions for drafts": MODEL.draft,
    "who asks what runs": "$SRV.>",
    "everything of the model": f"{ROOT}.>",
    "everything": ">",
    "all answers": "_INBOX.>",
    "what the broker says of itself": "$SYS.>",
}
READING_FILES = {
    "reading the model's files", "finding the model's files", "reading the newest of the model's files",
    "asking who keeps files",
}  # fmt: skip
MAY: dict[str, tuple[set[str], set[str]]] = {  # by role: all of SAY, all of HEAR
    "stage-0": (
        {"a step to stage 1", "a result", "a sign of life of stage 0", "a measurement of the way to oneself"}
        | READING_FILES,
        {
            "who asks what runs", "steps to stage 0", "openings of stage 0", "signs of life", "decoders' signs of life",
            "measurements of the way to oneself",
        },
    ),
    "stage-1": (
        {"a result", "a sign of life of stage 1", "a measurement of the way to oneself"} | READING_FILES,
        {
            "who asks what runs", "steps to stage 1", "signs of life", "decoders' signs of life",
            "measurements of the way to oneself",
        },
    ),
    "decoder": (
        {
            "a step to stage 0", "a step to stage 1", "an opening of stage 0", "a sign of life of a decoder", "a token",
            "an event", "a dead letter", "a question for drafts", "the lease", "making a stream", "finding a stream",
            "reading events", "taking prompts", "acknowledging a prompt", "the lease of a second pipeline",
            "reading the lease of a second pipeline",
        } | READING_FILES,
        {"who asks what runs", "results", "signs of life", "decoders' signs of life", "questions", "wishes to stop"},
    ),
    "draft": (READING_FILES, {"who asks what runs", "questions for drafts"}),
    "client": (
        {"a prompt", "a question", "a wish to stop", "finding a stream", "reading events"},
        {"decoders' signs of life", "tokens of a request"},
    ),
    "gateway": (
        {"a prompt", "a question", "a wish to stop", "finding a stream", "reading events"},
        {"signs of life", "decoders' signs of life", "tokens of a request"},
    ),
    "export": (
        READING_FILES
        | {"writing the model's files", "making room for the model's files", "removing the model's files"},
        set(),
    ),
    "monitor": (
        {"finding a stream", "asking what runs", "asking what JetStream holds"},
        {"signs of life", "decoders' signs of life"},
    ),
    "admin": (
        set(SAY) - {"asking the broker itself", "anything"},
        set(HEAR) - {"everything", "all answers", "what the broker says of itself"},
    ),
    "system": ({"asking the broker itself"}, {"what the broker says of itself"}),
}  # fmt: skip


async def allowed(transport: NatsTransport) -> tuple[set[str], set[str]]:
    """What the broker lets through, tried."""
    said, heard = set[str](), set[str]()
    for name, subject in SAY.items():
        try:
            await transport.rehearse(subject)
            said.add(name)
        except RefusedError:
            pass
    for name, subject in HEAR.items():
        try:
            async with transport.subscribe(subject):
                heard.add(name)
        except RefusedError:
            pass
    return said, heard


@pytest.mark.parametrize("role", MAY)
def test_a_role_can_say_and_hear_what_it_may_and_nothing_else(tmp_path: Path, role: str) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as broker, connect(broker.url_for(role), name="test") as transport:
            assert await allowed(transport) == MAY[role]

    run(main)


def test_every_role_is_tested() -> None:
    assert set(expand(ALL_KINDS, 2)) == set(MAY)


def test_nobody_hears_answers_to_somebody_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as broker:
            for role in MAY:
                others = {name: key for name, key in broker.public.items() if name != role}
                async with connect(broker.url_for(role), name="test") as transport:
                    for key in others.values():
                        with pytest.raises(RefusedError):
                            async with transport.subscribe(f"{inbox_of(key)}.>"):
                                pass

    run(main)


def test_a_refused_subject_ends_a_process_at_its_start_in_one_clear_line(tmp_path: Path) -> None:
    async def main() -> None:
        words = rf"does not let the key \S+draft\.nk subscribe to {MODEL.generate}: is it the key of this role"
        async with guarded(tmp_path) as broker:
            with pytest.raises(BrokerError, match=words):
                async with (
                    connect(broker.url_for("draft"), name="test") as transport,
                    transport.subscribe(MODEL.generate),
                ):
                    pass

    run(main)


def test_a_message_refused_later_ends_the_process_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as broker:
            with pytest.raises(BrokerError, match=f"publish on {MODEL.cancel}"):
                async with connect(broker.url_for("monitor"), name="test") as transport:
                    await transport.publish(MODEL.cancel, b"r")
                    await asyncio.Event().wait()

    run(main)


def test_a_subject_that_somebody_else_chose_ends_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as broker, connect(broker.url_for("decoder"), name="test") as transport:
            await transport.publish("wherever.you.want", b"an answer")
            await transport.barrier()

    run(main)


def test_a_refused_request_fails_at_once_and_not_at_its_timeout(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as broker, connect(broker.url_for("client"), name="test") as transport:
            async with asyncio.timeout(5):
                with pytest.raises(RefusedError, match="publish on shardline"):
                    await transport.request(MODEL.draft, b"", timeout=60)

    run(main)


def test_a_client_is_told_to_start_a_decoder_where_there_is_no_queue_yet(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as broker, connect(broker.url_for("client"), name="test") as transport:
            with pytest.raises(BrokerError, match=f"{PROMPTS} is not there and not ours to make: start decoder-run"):
                await open_queue(transport, MODEL)

    run(main)


@asynccontextmanager
async def two(broker: Guarded) -> AsyncGenerator[tuple[NatsTransport, NatsTransport]]:
    async with AsyncExitStack() as stack:
        opened = [connect(broker.url_for(role), name=role) for role in ("decoder", "client")]
        yield (await stack.enter_async_context(opened[0]), await stack.enter_async_context(opened[1]))


def test_a_client_stores_prompts_and_reads_the_log_that_a_decoder_keeps(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as broker, two(broker) as (decoder, client):
            jobs = await open_queue(decoder, MODEL, use="take")
            log = await open_events(decoder, MODEL, writer="d")
            async with client.subscribe(MODEL.tokens("r")) as inbox:
                await (await open_queue(client, MODEL)).put(b"why", message_id="r")
                [job] = await jobs.take(1, timeout=5)
                await log.append("r", b"because", prompt="p", after=0)
                assert (await inbox.get()).data == b"because"
                await job.done()
                assert [e.data for e in await (await open_events(client, MODEL)).read("r")] == [b"because"]
            lease = await decoder.lease(bucket=MODEL.lease_bucket, key="pipeline")
            assert await lease.read() is None
            assert await lease.write(b"d", after=0) == 1
            [job] = [await open_queue(decoder, MODEL)]
            assert (await job.depth()).pending == 0

    run(main)


def test_an_exporter_stores_and_removes_files_that_stages_read(tmp_path: Path) -> None:
    async def main() -> None:
        place = {"stream": MODEL.files_stream, "subject": MODEL.files}
        async with (
            guarded(tmp_path) as broker,
            connect(broker.url_for("export"), name="test") as export,
            connect(broker.url_for("stage-1"), name="test") as stage,
        ):
            assert await stage.file_store(**place, create=False) is None
            store = await export.file_store(**place, create=True)
            assert store is not None
            await store.put("chunk.a.0", b"weights", digest="d")
            assert await stage.streams_of(f"{MODEL.files}.>") == [MODEL.files_stream]
            reader = await stage.file_store(**place, create=False)
            assert reader is not None
            for name in ("chunk.a.0", "chunk.*.*"):
                kept = await reader.get(name)
                assert kept is not None
                assert (kept.data, kept.digest) == (b"weights", "d")
            assert await reader.names("chunk.a") == {"0"}
            with pytest.raises(RefusedError):
                await reader.remove(">")
            await store.remove(">")
            assert await reader.get("chunk.a.0") is None

    run(main)


def test_each_pipeline_of_a_decoders_model_has_a_lease(tmp_path: Path) -> None:
    async def main() -> None:
        async with guarded(tmp_path) as broker, connect(broker.url_for("decoder"), name="test") as transport:
            for pipeline in ("main", "two"):
                lease = await transport.lease(bucket=MODEL.lease_bucket, key=Subjects.lease_key(pipeline))
                assert await lease.read() is None
                revision = await lease.write(pipeline.encode(), after=0)
                assert await lease.read() == (revision, pipeline.encode())

    run(main)


def test_rights_are_for_the_models_that_were_named() -> None:
    keys = dict.fromkeys(expand(ALL_KINDS, 2), "U")
    of_two = grant("decoder", [MODEL, Subjects("default", "other")], 2, keys)
    assert MODEL.generate in of_two.subscribe
    assert f"{OTHER}.generate" in of_two.subscribe
    assert f"{OTHER}.generate" not in grant("decoder", [MODEL], 2, keys).subscribe
    assert Grant(("a",)) + Grant(("a", "b"), ("c",)) == Grant(("a", "b"), ("c",))
