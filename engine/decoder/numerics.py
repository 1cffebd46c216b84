"""How the chain of one epoch computes, and whether an answer that goes on there goes on as before. No I/O."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.contract.control import StageHeartbeat

DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class Numerics:
    """Equal ones give equal bits, whatever was replayed between."""

    fingerprint: str
    epoch: int = 0  # where a replay does not give the same bits, no other epoch computes the same


def numerics_of(chain: Sequence[StageHeartbeat], epoch: int) -> Numerics:
    """Of all stages together; they promise equal replays if every worker's self-test saw them."""
    words = "\n".join(worker.numerics for worker in chain)
    replays = all(worker.equalities.get("replay", worker.profile == "exact") for worker in chain)
    return Numerics(hashlib.sha256(words.encode()).hexdigest()[:DIGITS], 0 if replays else epoch)


class Stretches:
    """The parts of one answer, each computed alike; counted from what was told before by another decoder."""

    def __init__(self, told: Sequence[str] = ()) -> None:
        self._all = list(told)
        self._latest = Numerics(self._all[-1]) if self._all else None
        self._untold = 0

    def computed(self, numerics: Numerics) -> None:
        """More tokens came, from such a chain."""
        if numerics != self._latest:
            self._latest = numerics
            self._all.append(numerics.fingerprint)
            self._untold += 1

    def tell(self) -> tuple[str, ...]:
        """Fingerprints since the last call."""
        untold, self._untold = self._untold, 0
        return self.all[len(self._all) - untold :]

    @property
    def all(self) -> tuple[str, ...]:
        """Fingerprints of the whole answer so far."""
        return tuple(self._all)
