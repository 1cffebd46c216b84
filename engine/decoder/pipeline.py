"""Opening an epoch: wait for a worker per stage, own the lease, make every worker adopt the epoch."""

import asyncio
import logging
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from engine.contract.control import (
    MAIN_PIPELINE,
    SUSPECT_SECONDS,
    DecoderHeartbeat,
    Open,
    Opened,
    StageHeartbeat,
    from_json,
    to_json,
)
from engine.contract.errors import BrokerError, ErrorCode, FrameError, LeaseLostError, NoResponderError
from engine.contract.ids import Epoch, Incarnation
from engine.decoder.fleet import Concern, Fleet
from engine.transport.base import Incoming, Lease, Transport
from engine.transport.subjects import Subjects

STUCK_SECONDS: Final = 3.0  # without a complete chain, after which prompts go to another pipeline
OPEN_TIMEOUT: Final = 3.0  # seconds; a worker answers between two steps, so this covers one long step
RETRY_SECONDS: Final = 0.25
log = logging.getLogger("shardline.decoder")


@dataclass(frozen=True, slots=True)
class Route:
    """The chain of one epoch."""

    epoch: Epoch
    chain: tuple[StageHeartbeat, ...]

    @property
    def first(self) -> StageHeartbeat:
        """The worker that steps are published to."""
        return self.chain[0]

    @property
    def last(self) -> StageHeartbeat:
        """The worker that results come from."""
        return self.chain[-1]


class Pipeline:
    """One decoder's view of its workers and its claim on them."""

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        lease: Lease,
        fleet: Fleet,
        *,
        decoder: str,
        name: str = MAIN_PIPELINE,
    ) -> None:
        self._transport, self._subjects, self._lease = transport, subjects, lease
        self._decoder, self._name = decoder, name
        self._elsewhere = float("-inf")  # when a decoder of another pipeline was heard that serves
        self._waiting_since = time.monotonic()
        self._fleet = fleet
        self._revision: int | None = None  # of the lease, once it is ours
        self._chain: list[StageHeartbeat] = []  # of the epoch that is open
        self.concern: Concern | None = None  # why it should end although its steps come back
        self._unsure = False  # whether that is still its revision
        self._decoders: dict[str, float] = {}  # other decoders and when they were heard
        self._heard = asyncio.Event()
        self._started = time.monotonic()
        self.waits_for = "the broker"
        self.owned = asyncio.Event()  # no other decoder serves this pipeline

    def observe(self, message: Incoming) -> None:
        """Take in a heartbeat of anybody; what is not one is ignored.

        Raises LeaseLostError when another decoder has raised the epoch: steps of ours would only time out.
        """
        now = time.monotonic()
        try:
            if message.subject.startswith(self._subjects.decoder_heartbeat("")):
                self._observe_decoder(from_json(DecoderHeartbeat, message.data), now)
            elif (worker := from_json(StageHeartbeat, message.data)).pipeline == self._name:
                self._fleet.observe(worker, now)
        except FrameError as error:
            log.warning("ignored a heartbeat on %s: %s", message.subject, error)
        self.concern = self._fleet.concern(self._chain, now) if self._chain else None
        self._heard.set()

    def _observe_decoder(self, other: DecoderHeartbeat, now: float) -> None:
        if other.pipeline != self._name:
            if other.state == "serving":
                self._elsewhere = now
            return
        self._decoders[other.decoder] = now
        if other.decoder != self._decoder and other.epoch > (self._revision or other.epoch):
            raise LeaseLostError(f"decoder {other.decoder} on {other.host} has taken the pipeline's lease")

    @property
    def better_elsewhere(self) -> bool:
        """Whether this pipeline cannot serve for a while already, and another one of the model can."""
        now = time.monotonic()
        stuck = bool(self.waits_for) and now - self._waiting_since >= STUCK_SECONDS
        return stuck and now - self._elsewhere < SUSPECT_SECONDS

    async def open(self) -> Route:
        """A new epoch on a complete chain; waits for as long as it takes, for the broker too. Raises LeaseLostError."""
        self._chain, self.concern, self._waiting_since = [], None, time.monotonic()
        while True:
            try:
                if (route := await self._attempt()) is not None:
                    self.waits_for, self._chain = "", list(route.chain)
                    self._fleet.opened(route.chain)
                    return route
            except LeaseLostError:
                raise
            except BrokerError as error:
                log.warning("no epoch can be opened yet: %s", error)
                await asyncio.sleep(RETRY_SECONDS)  # the broker may be there, and not ready yet

    def distrust(self, incarnation: Incarnation) -> None:
        """A worker says that its device fails: another one of its stage is rather taken, if there is one."""
        self._fleet.distrust(incarnation, time.monotonic())

    async def _attempt(self) -> Route | None:
        if not self._transport.connected:
            self.waits_for = "the broker"
            log.info("waiting for the broker")
            await self._transport.online()
        await self._own_lease()
        chain = await self._wait(lambda: self._fleet.chain(time.monotonic()))
        epoch = Epoch(await self._raise_epoch())
        return Route(epoch, tuple(chain)) if await self._open_all(chain, epoch) else None

    async def _find_lease(self) -> None:
        """A write that was not confirmed may have been taken all the same."""
        found = await self._lease.read()
        if found and _holder(found[1]) == self._decoder:
            self._revision = found[0]
        self._unsure = False

    async def release(self) -> None:
        """Let the next decoder take over at once; without a broker it waits until we count as silent."""
        if self._revision is not None and self._transport.connected:
            try:
                await self._lease.write(orjson.dumps({"decoder": ""}), after=self._revision)
            except BrokerError as error:
                log.warning("the lease is not handed back: %s", error)

    async def _own_lease(self) -> None:
        if self._unsure:
            await self._find_lease()
        if self._revision is not None:
            return
        found = await self._lease.read()
        holder = _holder(found[1]) if found else ""
        if holder:
            self._decoders.setdefault(holder, self._started)
            await self._wait(lambda: self._silent(holder))
        self._revision = found[0] if found else 0
        self.owned.set()

    def _silent(self, holder: str) -> list[StageHeartbeat] | str:
        silent = time.monotonic() - self._decoders[holder] > SUSPECT_SECONDS
        return [] if silent else f"decoder {holder} to stop: it serves this pipeline"

    async def _raise_epoch(self) -> int:
        value = orjson.dumps({"decoder": self._decoder, "host": platform.node()})
        self._unsure = True
        self._revision = await self._lease.write(value, after=self._revision or 0)
        self._unsure = False
        return self._revision

    async def _wait(self, attempt: Callable[[], list[StageHeartbeat] | str]) -> list[StageHeartbeat]:
        """Try again at every heartbeat; says what it waits for when that changes."""
        while isinstance(missing := attempt(), str):
            if missing != self.waits_for:
                log.info("waiting for %s", missing)
            self.waits_for = missing
            self._heard.clear()
            try:
                async with asyncio.timeout(SUSPECT_SECONDS):  # silence is news too
                    await self._heard.wait()
            except TimeoutError:
                pass
        return missing

    async def _open_all(self, chain: list[StageHeartbeat], epoch: Epoch) -> bool:
        nexts = [*chain[1:], None]
        answers = [self._open_one(here, then, epoch) for here, then in zip(chain, nexts, strict=True)]
        return all(await asyncio.gather(*answers))

    async def _open_one(self, here: StageHeartbeat, then: StageHeartbeat | None, epoch: Epoch) -> bool:
        message = Open(
            epoch=epoch,
            decoder=self._decoder,
            done=self._subjects.done(self._decoder, epoch),
            next_subject=self._subjects.stage(then.stage, then.incarnation) if then else "",
            next_incarnation=then.incarnation if then else 0,
        )
        subject = self._subjects.stage_control(here.stage, here.incarnation)
        try:
            reply = await self._transport.request(subject, to_json(message), timeout=OPEN_TIMEOUT)
            opened = from_json(Opened, reply.data)
        except (NoResponderError, TimeoutError, FrameError) as error:
            log.warning("stage %d on %s does not open: %s", here.stage, here.host, error or "no answer")
            self._fleet.bury(Incarnation(here.incarnation), time.monotonic())
            return False
        if opened.code:
            log.warning("stage %d on %s refuses epoch %d: %s", here.stage, here.host, epoch, opened.message)
        if opened.code == ErrorCode.DEVICE_FAILED:  # it ends
            self._fleet.bury(Incarnation(here.incarnation), time.monotonic())
        return not opened.code


def _holder(value: bytes) -> str:
    """Which decoder a lease names; "" when it was let go. Raises LeaseLostError for a value that is not one of ours."""
    try:
        found: Any = orjson.loads(value)
        decoder = found["decoder"]
    except (orjson.JSONDecodeError, TypeError, KeyError) as error:
        raise LeaseLostError(
            f"the pipeline's lease holds {value!r:.80}, written by somebody else: delete it"
        ) from error
    return str(decoder)
