"""The worker process's service: load a shard, keep its place or stand by for it, compute steps, drain.

1. listen to heartbeats and send some, loading    2. load and self-test in the computing thread
3. subscribe, announce ready or standby           4. Open: adopt an epoch; steps: compute in order, send on
5. on hearing that a later epoch has another worker of the stage: stand by
6. on stop: announce draining, serve on until a successor has taken over if there is one; finish what arrived,
   tell the decoder, leave
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from engine.contract.control import (
    HEARTBEAT_SECONDS,
    DecoderHeartbeat,
    Open,
    Opened,
    StageHeartbeat,
    WorkerState,
    from_json,
    to_json,
)
from engine.contract.errors import BrokerError, DeviceError, ErrorCode, FrameError
from engine.contract.ids import Epoch
from engine.contract.traces import Tracer
from engine.transport.base import Inbox, Incoming, Transport
from engine.transport.subjects import Subjects
from stages.core import StageCore
from stages.heartbeat import AtWork, Loaded, heartbeat
from stages.identity import Identity
from stages.load import Load
from stages.place import Place, Terms
from stages.pump import Pump
from stages.runner import room

LISTEN_SECONDS: Final = 1.5 * HEARTBEAT_SECONDS  # nobody who is alive stays silent that long
PRIMARY: Final = Terms()
HAND_OVER_SHARE: Final = 0.7  # of the grace period: the rest is for the steps that have arrived by then
INBOX_FRAMES: Final = 256  # steps and their sides, more than any decoder keeps in flight; what is lost shows as a gap
log = logging.getLogger("shardline.stage")


class StageWorker:
    """Serves one shard. `load` blocks and runs in the thread that will compute."""

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        identity: Identity,
        load: Callable[[], Loaded],
        *,
        announce: Callable[[str], None],
        terms: Terms = PRIMARY,
        listen: float = LISTEN_SECONDS,
        heartbeat: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._transport, self._subjects, self._identity = transport, subjects, identity
        self._load_shard, self._announce, self._listen, self._heartbeat = load, announce, listen, heartbeat
        self.tracer: Tracer | None = None  # where spans of its steps go; set before it runs
        self._load = Load(time.monotonic())
        self._state: WorkerState = "loading"
        self._changed = asyncio.Event()
        self._work: AtWork | None = None
        self._place, self._grace = Place(identity, standby=terms.standby), terms.grace

    @property
    def state(self) -> WorkerState:
        """What heartbeats say."""
        return "serving" if self._state == "ready" and self._serves else self._state

    @property
    def _serves(self) -> bool:
        return self._work is not None and self._work.core.route is not None and not self._place.standby

    def neighbours(self) -> list[int]:
        """Process ids of this deployment and model on this host, ours included."""
        return self._place.neighbours()

    def give_way(self, reason: str) -> None:
        """Somebody else needs the machine, until told "": another worker of the stage is to take over."""
        self._place.give_way(reason, serves=self._serves)
        self._changed.set()

    def heartbeat(self) -> StageHeartbeat:
        """What it says of itself at this moment."""
        return heartbeat(self._identity, self.state, self._load, self._work, self._place, self._transport.link)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`; steps that have arrived are finished. Raises ShardlineError when the place is taken."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="inference")
        try:
            async with self._transport.subscribe(self._subjects.heartbeats) as heartbeats, asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(self._beat()), tasks.create_task(self._watch(heartbeats))]
                loaded = await self._become_ready(thread, stop)
                if loaded is not None:
                    await self._serve(loaded, thread, stop)
                for task in background:
                    task.cancel()
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    async def _become_ready(self, thread: Executor, stop: asyncio.Event) -> Loaded | None:
        """Load, and hear out everybody else; None when told to stop meanwhile."""
        began = time.monotonic()
        loading = asyncio.get_running_loop().run_in_executor(thread, self._load_shard)
        if not await _done_before(stop, loading):
            return None
        rest = 0.0 if self._place.standby else max(self._listen - (time.monotonic() - began), 0)
        listening = asyncio.ensure_future(asyncio.sleep(rest))
        return loading.result() if await _done_before(stop, listening) else None

    async def _serve(self, loaded: Loaded, thread: Executor, stop: asyncio.Event) -> None:
        core = StageCore(self._identity, loaded.runner, self._subjects, loaded.check, self.tracer)
        pump = Pump(self._transport, core, thread, self._load)
        place = (self._identity.stage, self._identity.incarnation)
        async with (
            self._transport.subscribe(self._subjects.stage(*place), limit=INBOX_FRAMES) as steps,
            self._transport.subscribe(self._subjects.stage_control(*place)) as control,
            self._transport.subscribe(self._subjects.stage_gone(*place, "*")) as gone,
            asyncio.TaskGroup() as tasks,
        ):
            await self._rehearse()
            self._work = AtWork(loaded, core, pump, steps)
            feeding = tasks.create_task(pump.feed(steps))
            serving = [
                tasks.create_task(pump.publish()),
                tasks.create_task(self._answer(control, core, thread)),
                tasks.create_task(self._report_gone(gone, core, pump)),
            ]
            self._become("ready")
            cache = f"KV cache of {room(loaded.runner.capabilities)} in {self._identity.kv_precision}"
            self._announce(f"{'standby' if self._place.standby else 'ready'} {self._identity.describe()}, {cache}")
            await stop.wait()
            self._become("draining")
            await self._hand_over()
            feeding.cancel()
            await self._drain(core, pump, steps)
            for task in serving:
                task.cancel()
        await asyncio.get_running_loop().run_in_executor(thread, loaded.runner.close)

    async def _rehearse(self) -> None:
        """Whether the broker lets us send results on. Raises BrokerError, naming the subject."""
        further = () if self._identity.last else (self._subjects.stage(self._identity.stage + 1, 0),)
        await self._transport.rehearse(*further, self._subjects.done("nobody", 0))

    async def _hand_over(self) -> None:
        """Serve on until the decoder has moved to another worker of our stage, if there is one or will be."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_SHARE * self._grace):
                while self._serves and self._place.successor():
                    self._place.heard.clear()
                    await self._place.heard.wait()

    async def _drain(self, core: StageCore, pump: Pump, steps: Inbox) -> None:
        with suppress(BrokerError):  # without a broker there is nothing more to come
            await self._transport.barrier()
        await pump.finish(steps)
        goodbye = core.failure(ErrorCode.UNAVAILABLE, "the worker is stopping")
        if goodbye is not None:  # so that the decoder need not find out by itself
            await pump.send(goodbye)

    async def _answer(self, control: Inbox, core: StageCore, thread: Executor) -> None:
        while True:
            message = await control.get()
            if not message.data:
                continue  # a decoder's probe: that it arrived is the answer
            opened = await self._open(message, core, thread)
            self._changed.set()
            if message.reply:
                with suppress(BrokerError):  # who asked has given up by then
                    await self._transport.publish(message.reply, to_json(opened))
            if opened.code == ErrorCode.DEVICE_FAILED:  # whoever is started again has a new device, perhaps
                raise DeviceError(f"stage {self._identity.stage} computes nothing any more: {opened.message}")

    async def _open(self, message: Incoming, core: StageCore, thread: Executor) -> Opened:
        mine = self._identity.incarnation
        if self._state == "draining":
            text = "the worker is stopping"
            return Opened(epoch=core.epoch, incarnation=mine, code=ErrorCode.UNAVAILABLE, message=text)
        try:
            request = from_json(Open, message.data)
        except FrameError as error:
            return Opened(epoch=core.epoch, incarnation=mine, code=error.code, message=str(error))
        core.announce(request)
        opened = await asyncio.get_running_loop().run_in_executor(thread, core.open, request)
        if not opened.code:
            self._place.taken_up()
        log.info("epoch %d of decoder %s: %s", request.epoch, request.decoder, opened.message or "adopted")
        return opened

    async def _report_gone(self, gone: Inbox, core: StageCore, pump: Pump) -> None:
        """Tell the decoder, once per epoch, that nobody takes our results."""
        reported = Epoch(0)
        place = (self._identity.stage, self._identity.incarnation)
        while True:
            message = await gone.get()
            epoch = core.epoch
            if not message.no_responder or epoch == reported:
                continue
            if message.subject != self._subjects.stage_gone(*place, epoch):
                continue  # of an epoch that is over
            reported = epoch
            failed = core.failure(ErrorCode.NEXT_STAGE_GONE, "nobody takes the results of this stage")
            if failed is not None:
                await pump.send(failed)

    async def _watch(self, heartbeats: Inbox) -> None:
        """Look at everybody's heartbeats. Raises ShardlineError when another worker has our place."""
        while True:
            message = await heartbeats.get()
            try:
                if message.subject.startswith(self._subjects.decoder_heartbeat("")):
                    self._consider(from_json(DecoderHeartbeat, message.data))
                else:
                    self._consider(from_json(StageHeartbeat, message.data))
            except FrameError as error:
                log.debug("ignored a heartbeat on %s: %s", message.subject, error)

    def _consider(self, other: StageHeartbeat | DecoderHeartbeat) -> None:
        core = self._work.core if self._work else None
        if self._place.observe(other, self._state, core.epoch if core else Epoch(0)):
            if core:
                core.supersede(Epoch(other.epoch))
            self._changed.set()

    def _become(self, state: WorkerState) -> None:
        self._state = state
        self._changed.set()

    async def _beat(self) -> None:
        """A heartbeat every second, and at once when something changes."""
        subject = self._subjects.stage_heartbeat(self._identity.stage)
        while True:
            self._changed.clear()
            with suppress(BrokerError):  # the transport says so already
                await self._transport.publish(subject, to_json(self.heartbeat()))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat):
                    await self._changed.wait()


async def _done_before(stop: asyncio.Event, work: "asyncio.Future[Any]") -> bool:
    """Whether `work` is done before `stop` is set; it is cancelled otherwise."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return work.done()
    finally:
        stopped.cancel()
        if not work.done():
            work.cancel()
