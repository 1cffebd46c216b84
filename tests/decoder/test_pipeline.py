import asyncio

import pytest

from engine.contract.control import DecoderHeartbeat, Speculation, to_json
from engine.contract.errors import BrokerError, LeaseLostError
from engine.decoder.fleet import Fleet
from engine.decoder.pipeline import Pipeline
from engine.transport.base import Incoming, Lease
from engine.transport.memory import MemoryBroker, MemoryTransport
from tests.decoder.local_pipeline import SUBJECTS


def heard(decoder: str, epoch: int, pipeline: str = "main") -> Incoming:
    heartbeat = DecoderHeartbeat(
        decoder=decoder,
        state="serving",
        waits_for="",
        epoch=epoch,
        model="model",
        host="there",
        pid=1,
        waiting=0,
        running=0,
        blocks=0,
        free_blocks=0,
        steps=0,
        steps_in_flight=0,
        replays=0,
        tokens=0,
        tokens_per_second=0.0,
        speculation=Speculation(),
        pipeline=pipeline,
    )
    return Incoming(SUBJECTS.decoder_heartbeat(decoder), to_json(heartbeat))


class Unconfirmed:
    """A lease whose first write is taken and not confirmed."""

    def __init__(self, lease: Lease) -> None:
        self._lease, self.read, self._failed = lease, lease.read, False

    async def write(self, value: bytes, *, after: int) -> int:
        revision = await self._lease.write(value, after=after)
        if not self._failed:
            self._failed = True
            raise BrokerError("nobody has confirmed that")
        return revision


def test_a_write_of_the_lease_that_was_taken_unconfirmed_is_our_own() -> None:
    async def main() -> None:
        transport = MemoryTransport(MemoryBroker())
        lease = Unconfirmed(await transport.lease(bucket="L", key="k"))
        pipeline = Pipeline(transport, SUBJECTS, lease, Fleet(split="s", stages=1), decoder="me")
        with pytest.raises(BrokerError):
            await pipeline._raise_epoch()
        await pipeline._own_lease()
        assert await pipeline._raise_epoch() == 2

    asyncio.run(main())


def test_another_decoder_with_a_later_epoch_has_the_pipeline() -> None:
    async def main() -> None:
        transport = MemoryTransport(MemoryBroker())
        lease = await transport.lease(bucket="L", key="k")
        pipeline = Pipeline(transport, SUBJECTS, lease, Fleet(split="s", stages=1), decoder="me")
        pipeline.observe(heard("before", 7))  # of a lease that we have yet to read
        await pipeline._own_lease()
        epoch = await pipeline._raise_epoch()
        pipeline.observe(heard("me", epoch + 1))
        pipeline.observe(heard("before", epoch))
        pipeline.observe(heard("of-another-pipeline", epoch + 1, pipeline="two"))
        with pytest.raises(LeaseLostError, match="decoder other on there"):
            pipeline.observe(heard("other", epoch + 1))

    asyncio.run(main())
