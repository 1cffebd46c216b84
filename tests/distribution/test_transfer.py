"""A split by way of a broker: the same on the twin in memory and on a real one."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.contract.errors import NotPushedError, TransferError, UsageError
from engine.contract.manifest import Manifest
from engine.distribution.cache import sha256
from engine.distribution.models import existing_store, fetch_model, models
from engine.distribution.pieces import Need, group_of
from engine.distribution.pull import Target, pull
from engine.distribution.push import push, remove_older
from engine.distribution.transfer import Mover
from engine.local.broker import embedded_broker
from engine.transport.base import FileStore, Kept, Transport
from engine.transport.memory import MemoryBroker, MemoryTransport
from engine.transport.nats import connect
from tests.distribution.splits import PIECES, WEIGHTS, files_in, make_split

EVERYTHING = Need()


@dataclass(frozen=True)
class Bench:
    """A split that lies ready, and a broker."""

    transport: Transport
    home: Path
    split: Path
    manifest: Manifest
    said: list[str]

    def mover(self) -> Mover:
        return Mover(say=self.said.append, patience=0.0)

    async def push(self, *, again: bool = False) -> int:
        """How many bytes were sent."""
        mover = self.mover()
        await push(self.transport, "default", self.split, mover, again=again)
        return mover.progress.moved

    async def store(self) -> FileStore:
        return await existing_store(self.transport, "default", "model")

    async def pull(
        self, to: str, need: Need = EVERYTHING, *, cache: str = "cache", store: FileStore | None = None
    ) -> tuple[Path, int]:
        """The folder, and how many bytes were fetched."""
        mover, target = self.mover(), Target(cache=self.home / cache, folder=self.home / to if to else None)
        folder = await pull(store or await self.store(), "model", need, target, mover)
        assert mover.progress.done == mover.progress.total
        return folder, mover.progress.moved


WithBench = Callable[[Callable[[Bench], Awaitable[None]]], None]


@asynccontextmanager
async def memory() -> AsyncGenerator[Transport]:
    yield MemoryTransport(MemoryBroker())


@asynccontextmanager
async def nats() -> AsyncGenerator[Transport]:
    async with embedded_broker() as url, connect(url, name="test") as transport:
        yield transport


@pytest.fixture(params=[pytest.param(memory, id="memory"), pytest.param(nats, id="nats", marks=pytest.mark.broker)])
def with_bench(request: pytest.FixtureRequest, tmp_path: Path) -> WithBench:
    def run(test: Callable[[Bench], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(30), request.param() as transport:
                await test(Bench(transport, tmp_path, tmp_path / "split", make_split(tmp_path / "split"), []))

        asyncio.run(main())

    return run


class Flipping:
    """A store that gives some chunks with a bit flipped, each a number of times."""

    def __init__(self, store: FileStore, flips: dict[str, int]) -> None:
        self._store, self._flips = store, flips
        self.put, self.names, self.remove = store.put, store.names, store.remove

    async def get(self, name: str) -> Kept | None:
        kept = await self._store.get(name)
        if kept and self._flips.get(name):
            self._flips[name] -= 1
            return Kept(bytes([kept.data[0] ^ 1]) + kept.data[1:], kept.digest)
        return kept


def test_what_was_pushed_comes_back_byte_for_byte(with_bench: WithBench) -> None:
    async def test(bench: Bench) -> None:
        await bench.push()
        folder, _ = await bench.pull("here")
        assert files_in(folder) == files_in(bench.split)
        assert (folder / "manifest.json").read_bytes() == (bench.split / "manifest.json").read_bytes()

    with_bench(test)


def test_what_is_there_is_not_sent_again(with_bench: WithBench) -> None:
    async def test(bench: Bench) -> None:
        assert await bench.push() > 2 * WEIGHTS
        assert await bench.push() == 0

    with_bench(test)


def test_a_stage_gets_its_own_files_and_the_decoder_the_tokenizer(with_bench: WithBench) -> None:
    async def test(bench: Bench) -> None:
        await bench.push()
        folder, fetched = await bench.pull("stage", Need(stages=(1,)))
        assert set(files_in(folder)) == {"stage1/openvino_model.bin", "stage1/openvino_model.xml"}
        assert fetched == WEIGHTS + len("<net/>")
        folder, _ = await bench.pull("decoder", Need(tokenizer=True))
        assert set(files_in(folder)) == {"tokenizer/tokenizer.json", "tokenizer/empty"}

    with_bench(test)


def test_nothing_is_fetched_twice_on_one_machine(with_bench: WithBench) -> None:
    async def test(bench: Bench) -> None:
        await bench.push()
        await bench.pull("one", Need(stages=(0,)))
        _, fetched = await bench.pull("two", Need(stages=(0,)))
        assert fetched == 0
        _, fetched = await bench.pull("two", Need())  # the rest
        assert fetched == WEIGHTS + len("{}")
        assert (bench.home / "two/stage0/openvino_model.bin").samefile(bench.home / "one/stage0/openvino_model.bin")

    with_bench(test)


def test_a_push_that_was_cut_goes_on_where_it_was(with_bench: WithBench) -> None:
    async def test(bench: Bench) -> None:
        await bench.push()
        store = await bench.store()
        weights = bench.manifest.stages[1].files[1]
        await store.remove("manifest.*")
        for number in (1, 3):
            await store.remove(f"{group_of(weights)}.{number}")
        with pytest.raises(NotPushedError, match="has not finished"):
            await bench.pull("here")
        assert 0 < await bench.push() < WEIGHTS / 2 + 1000
        await bench.pull("here")

    with_bench(test)


def test_a_chunk_that_arrives_damaged_is_refused_by_name_and_fetched_again(with_bench: WithBench) -> None:
    async def test(bench: Bench) -> None:
        await bench.push()
        weights = bench.manifest.stages[0].files[1]
        store = Flipping(await bench.store(), {f"{group_of(weights)}.2": 2})
        folder, _ = await bench.pull("here", store=store)
        assert files_in(folder) == files_in(bench.split)
        refused = [line for line in bench.said if "damaged" in line]
        assert refused == 2 * ["chunk 2 of stage0/openvino_model.bin is damaged (sha256): refused, fetching it again"]

    with_bench(test)


def test_a_chunk_that_is_damaged_on_the_broker_is_reported_and_mended_by_pushing_again(with_bench: WithBench) -> None:
    async def test(bench: Bench) -> None:
        await bench.push()
        store, weights = await bench.store(), bench.manifest.stages[0].files[1]
        kept = await store.get(f"{group_of(weights)}.1")
        assert kept
        await store.put(f"{group_of(weights)}.1", kept.data[:-1] + b"?", digest=kept.digest)
        with pytest.raises(TransferError, match=r"chunk 1 of stage0/openvino_model\.bin is damaged .* --again"):
            await bench.pull("here")
        assert not (bench.home / "here" / "manifest.json").exists()
        await bench.push(again=True)
        _, fetched = await bench.pull("here")
        assert fetched < 2 * WEIGHTS  # chunks that had come before the damaged one stayed

    with_bench(test)


def test_a_chunk_that_is_altered_together_with_its_digest_is_found_by_the_file(with_bench: WithBench) -> None:
    async def test(bench: Bench) -> None:
        await bench.push()
        store, tokenizer = await bench.store(), bench.manifest.tokenizer_files[0]
        await store.put(f"{group_of(tokenizer)}.0", b"[]", digest=sha256(b"[]"))
        with pytest.raises(TransferError, match=r"tokenizer/tokenizer\.json on the broker is not the file"):
            await bench.pull("here", Need(tokenizer=True))

    with_bench(test)


def test_a_chunk_that_the_broker_has_lost_is_named_and_comes_back_by_pushing(with_bench: WithBench) -> None:
    async def test(bench: Bench) -> None:
        await bench.push()
        weights = bench.manifest.stages[0].files[1]
        await (await bench.store()).remove(f"{group_of(weights)}.{PIECES - 1}")
        with pytest.raises(TransferError, match=rf"chunk {PIECES - 1} of stage0/.* is not on the broker"):
            await bench.pull("here")
        assert await bench.push() == 100
        await bench.pull("here")

    with_bench(test)


def test_a_file_altered_on_this_machine_is_fetched_again(with_bench: WithBench) -> None:
    async def test(bench: Bench) -> None:
        await bench.push()
        folder, _ = await bench.pull("here")
        with (folder / "stage0/openvino_model.bin").open("r+b") as file:  # the same file in the cache, too
            file.write(b"?")
        _, fetched = await bench.pull("here")
        assert fetched == WEIGHTS
        assert files_in(folder) == files_in(bench.split)

    with_bench(test)


def test_a_folder_with_another_split_is_left_alone(with_bench: WithBench) -> None:
    async def test(bench: Bench) -> None:
        await bench.push()
        await bench.pull("here")
        make_split(bench.split, seed=1)
        await bench.push()
        with pytest.raises(TransferError, match="holds split 000000000000 of model"):
            await bench.pull("here")
        folder, _ = await bench.pull("")
        assert folder.parent.name == "pulled"
        assert files_in(folder) == files_in(bench.split)

    with_bench(test)


def test_the_split_that_was_pushed_last_is_the_one_that_is_fetched(with_bench: WithBench) -> None:
    async def test(bench: Bench) -> None:
        await bench.push()
        make_split(bench.home / "other", seed=1)
        await push(bench.transport, "default", bench.home / "other", bench.mover())
        assert await bench.push() == 0  # it is all there, and now the newest again
        folder, _ = await bench.pull("here")
        assert files_in(folder) == files_in(bench.split)

    with_bench(test)


def test_files_that_only_older_splits_need_can_be_removed(with_bench: WithBench) -> None:
    async def test(bench: Bench) -> None:
        await bench.push()
        make_split(bench.split, seed=1)
        await bench.push()
        store = await bench.store()
        assert await remove_older(store, "model", bench.mover()) == 2  # weights; the other files are the same
        assert await store.names(group_of(bench.manifest.stages[0].files[1])) == set()
        folder, _ = await bench.pull("here")
        assert files_in(folder) == files_in(bench.split)

    with_bench(test)


def test_the_only_model_is_found_and_a_choice_is_asked_for(with_bench: WithBench) -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(NotPushedError, match="no model in deployment 'default'"):
            await fetch_model(bench.transport, "default", "", bench.home / "here", Need(), bench.mover())
        await bench.push()
        await fetch_model(bench.transport, "default", "", bench.home / "here", Need(tokenizer=True), bench.mover())
        make_split(bench.home / "second", slug="second")
        await push(bench.transport, "default", bench.home / "second", bench.mover())
        await push(bench.transport, "elsewhere", bench.home / "second", bench.mover())
        assert list(await models(bench.transport, "default", bench.mover())) == ["model", "second"]
        with pytest.raises(UsageError, match="several models"):
            await fetch_model(bench.transport, "default", "", bench.home / "here", Need(), bench.mover())
        with pytest.raises(NotPushedError, match="no files of third in deployment 'default', only model, second"):
            await existing_store(bench.transport, "default", "third")

    with_bench(test)


def test_a_link_that_stays_away_ends_in_what_to_do(tmp_path: Path) -> None:
    async def main() -> None:
        transport = MemoryTransport(MemoryBroker())
        bench = Bench(transport, tmp_path, tmp_path / "split", make_split(tmp_path / "split"), [])
        await bench.push()
        store = await bench.store()
        transport.connected = False
        with pytest.raises(TransferError, match="do it again to go on from there"):
            await bench.pull("here", store=store)

    asyncio.run(main())


def test_a_broker_that_takes_only_small_messages_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        make_split(tmp_path)
        with pytest.raises(TransferError, match="raise max_payload"):
            await push(MemoryTransport(MemoryBroker(max_payload=65536)), "default", tmp_path, Mover(say=print))

    asyncio.run(main())
