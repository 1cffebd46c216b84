"""Other processes of our deployment and model, as their heartbeats show them. No I/O, no clock of its own."""

from engine.contract.control import SUSPECT_SECONDS, DecoderHeartbeat, StageHeartbeat
from engine.contract.ids import Epoch
from stages.identity import Identity
from stages.rivals import misfit, same_place


class Peers:
    """Who was heard lately: other workers of our stage, decoders, whoever runs on our host."""

    def __init__(self, mine: Identity) -> None:
        self._mine = mine
        self._workers: dict[int, tuple[float, StageHeartbeat]] = {}  # of our stage, by incarnation
        self._neighbours: dict[int, float] = {}  # by process id
        self._decoder = float("-inf")  # when one was heard

    def observe(self, other: StageHeartbeat | DecoderHeartbeat, now: float) -> None:
        """Somebody spoke, perhaps we ourselves."""
        if other.host == self._mine.host:
            self._neighbours[other.pid] = now
        if isinstance(other, DecoderHeartbeat):
            if other.pipeline == self._mine.pipeline:
                self.decoder_spoke(now)
        elif same_place(self._mine, other):
            self._workers[other.incarnation] = (now, other)
        self._workers = {key: seen for key, seen in self._workers.items() if now - seen[0] < SUSPECT_SECONDS}
        self._neighbours = {pid: at for pid, at in self._neighbours.items() if now - at < SUSPECT_SECONDS}

    def decoder_spoke(self, now: float) -> None:
        """A decoder is there."""
        self._decoder = now

    def successor(self, now: float) -> StageHeartbeat | None:
        """A worker that a decoder can give our stage to, at once or when it has loaded; None: it is ours alone."""
        if now - self._decoder >= SUSPECT_SECONDS:
            return None
        for at, other in self._workers.values():
            willing = other.state != "draining" and not other.yields and not misfit(self._mine, other)
            if willing and now - at < SUSPECT_SECONDS:
                return other
        return None

    def neighbours(self) -> list[int]:
        """Process ids on our host, our own included."""
        return list(self._neighbours)


def superseded(mine: Identity, epoch: Epoch, other: StageHeartbeat) -> bool:
    """Whether `other` shows that a decoder has given our stage to another worker since our `epoch`."""
    return same_place(mine, other) and other.state == "serving" and other.epoch > epoch
