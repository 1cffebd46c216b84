"""A worker's place in the pipeline: is it the stage's worker or a standby, may it leave, must it."""

import asyncio
import logging
import time
from dataclasses import dataclass

from engine.contract.control import DecoderHeartbeat, StageHeartbeat, WorkerState
from engine.contract.errors import ShardlineError
from engine.contract.ids import Epoch
from stages.identity import Identity
from stages.peers import Peers, superseded
from stages.rivals import misfit, rival

log = logging.getLogger("shardline.stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On what terms a worker has its stage."""

    standby: bool = False  # it starts as one
    grace: float = 0.0  # seconds to hand over and finish when told to stop


class Place:
    """Kept up to date by everybody's heartbeats; only a decoder gives the stage to somebody else."""

    def __init__(self, identity: Identity, *, standby: bool) -> None:
        self._identity = identity
        self._peers = Peers(identity)
        self._warned: set[str] = set()
        self.standby = standby
        self.yields = ""  # why we would rather not serve
        self.heard = asyncio.Event()  # a heartbeat came; for whoever clears it

    def observe(self, other: StageHeartbeat | DecoderHeartbeat, state: WorkerState, epoch: Epoch) -> bool:
        """Take in a heartbeat; whether it shows that somebody else serves our stage now: we stand by from here on.

        Raises ShardlineError when somebody had the place before us and we are no standby.
        """
        self._peers.observe(other, time.monotonic())
        self.heard.set()
        if isinstance(other, DecoderHeartbeat):
            return False
        if not self.standby and (taken := rival(self._identity, state, other)):
            raise ShardlineError(
                f"stage {self._identity.stage} of {self._identity.model} is taken: a worker on {taken.host} "
                f"(pid {taken.pid}) is {taken.state}; stop it first, start this one with --standby, "
                "or use another --index or --deployment"
            )
        self._warn(misfit(self._identity, other))
        if self.standby or state == "loading" or not superseded(self._identity, epoch, other):
            return False
        log.warning("stage %d is served by the worker on %s: standing by", self._identity.stage, other.host)
        self.standby = True
        return True

    def _warn(self, warning: str) -> None:
        if warning and warning not in self._warned:
            self._warned.add(warning)
            log.warning("%s", warning)

    def taken_up(self) -> None:
        """A decoder has opened an epoch on us: the stage is ours."""
        self.standby = False
        self._peers.decoder_spoke(time.monotonic())
        if self.yields:
            self._alone()

    def successor(self) -> StageHeartbeat | None:
        """Who can take over, if anybody."""
        return self._peers.successor(time.monotonic())

    def neighbours(self) -> list[int]:
        """Process ids of our deployment and model on our host, our own included."""
        return self._peers.neighbours()

    def give_way(self, reason: str, *, serves: bool) -> None:
        """From now on we would rather not serve, until told ""; says what that leads to."""
        self.yields = reason
        if not reason:
            log.info("this machine has time for stage %d again", self._identity.stage)
        elif not serves:
            log.info("%s: this worker serves only in need", reason)
        elif other := self.successor():
            log.info("%s: giving way to the worker on %s (pid %d)", reason, other.host, other.pid)
        else:
            self._alone()

    def _alone(self) -> None:
        log.warning(
            "%s, but no other worker can take over stage %d: going on; start another one with --standby elsewhere",
            self.yields,
            self._identity.stage,
        )
