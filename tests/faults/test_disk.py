"""The broker's disk is full in mid-answer: prompts are refused with the cure, nothing that was taken is lost."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.client.client import Client
from engine.contract.errors import BrokerError
from engine.contract.manifest import load_manifest
from engine.local.broker import broker_environment, find_server
from engine.local.pipeline import LocalPipeline
from engine.local.processes import Child, Processes
from engine.transport.nats import connect
from engine.transport.subjects import Subjects
from tests.conftest import Shards
from tests.faults.asking import HASTY, Answers, Disturbed, assert_same, by_client
from tests.faults.broker import logged
from tests.faults.test_cluster import free_ports

pytestmark = [pytest.mark.model, pytest.mark.broker, pytest.mark.faults, pytest.mark.xdist_group("faults")]
DISK = "16m"
LARGE = 5_000 * "word "  # a small one may fit into what its file has of the disk already
CONFIG = """\
listen: "127.0.0.1:{port}"
max_payload: 8MB
jetstream {{ store_dir: "{disk}", max_mem: 64MB, max_file: 1GB }}
"""


class Disk:
    """A small file system that only those see who are started on it."""

    def __init__(self, holder: Child, folder: Path) -> None:
        self._holder, self._ballast = holder, Path(f"/proc/{holder.pid}/root{folder}/ballast")

    @property
    def enter(self) -> list[str]:
        """What a command begins with that is to see it."""
        return ["nsenter", "--target", str(self._holder.pid), "--user", "--mount", "--preserve-credentials"]

    def fill(self) -> None:
        """Not a byte more fits."""
        ballast = os.open(self._ballast, os.O_CREAT | os.O_WRONLY)
        try:
            while os.write(ballast, bytes(4096)):
                pass
        except OSError:
            os.close(ballast)

    def free(self) -> None:
        """As an operator does."""
        self._ballast.unlink()


async def small_disk(processes: Processes, folder: Path) -> Disk:
    """Where this system does not allow it the test is skipped."""
    folder.mkdir()
    mount = f"mount -t tmpfs -o size={DISK} tmpfs '{folder}' && echo mounted && exec sleep infinity"
    holder = await processes.start("disk", ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount])
    try:
        await holder.wait_for_line("mounted")
    except ChildProcessError as error:
        pytest.skip(f"no file system of our own here: {error}")
    return Disk(holder, folder)


async def disturbed_by(shards: Path, home: Path, tell: Callable[[str], None]) -> list[Answers]:
    """Four prompts on a broker whose disk becomes full in mid-answer, and four once it has room and was restarted."""
    async with asyncio.timeout(200), Processes(home / "logs") as processes:
        disk = await small_disk(processes, home / "store")
        [port] = free_ports(1)
        (home / "nats.conf").write_text(CONFIG.format(port=port, disk=home / "store"))
        server = [*disk.enter, str(find_server()), "-c", str(home / "nats.conf")]
        broker = await processes.start("nats-server", server, broker_environment())
        pipeline = LocalPipeline(f"nats://127.0.0.1:{port}", load_manifest(shards).slug, shards, processes)
        pipeline.stages = [await pipeline.start_stage(index, 2) for index in range(2)]
        decoder = await pipeline.start_decoder(*HASTY)
        await decoder.wait_for_line("ready")
        subjects, halfway = Subjects("default", pipeline.slug), asyncio.Event()
        async with connect(pipeline.url, name="test") as transport:
            asking = asyncio.create_task(by_client(transport, subjects, "full", halfway))
            await halfway.wait()
            disk.fill()
            await logged(decoder, "events wait until they can be stored")
            with pytest.raises(BrokerError) as refused:
                await Client(transport, subjects).complete(prompt=LARGE, max_tokens=4)
            tell(str(refused.value))
            assert not asking.done()
            disk.free()
            broker.signal(signal.SIGTERM)  # by itself it does not write again
            await broker.wait()
            await processes.start("nats-server", server, broker_environment())
            return [await asking, await by_client(transport, subjects, "again", asyncio.Event())]


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="needs a file system of its own")
def test_a_full_disk_refuses_prompts_with_its_cure_and_costs_no_text(
    shards: Shards, tmp_path: Path, disturbed: Disturbed
) -> None:
    said: list[str] = []
    for told in asyncio.run(disturbed_by(shards(2), tmp_path, said.append)):
        assert_same(disturbed.calm, told)
    assert "is the broker's disk full?" in said[0]
