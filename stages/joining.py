"""Steps of the last stage wait for what comes straight from the decoder; order is kept. No I/O."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from engine.transport.base import Incoming
from engine.wire.frame import Peek, peek

MAX_SIDES: Final = 256  # steps whose sides are kept: more than any decoder has in flight


@dataclass(frozen=True, slots=True)
class Joined:
    """A frame for the computing thread, and the sides of its step."""

    data: bytes
    reply: str
    sides: tuple[bytes, ...] = ()


@dataclass(slots=True)
class Joining:
    """Sides overtake their step nearly always, having the shorter way; a step that is early waits, and all behind it.

    What never gets its sides is let through as it is once a newer epoch is heard of: the gate refuses it.
    """

    last: bool  # only the last stage waits
    _sides: dict[tuple[int, int], list[bytes]] = field(default_factory=dict[tuple[int, int], list[bytes]])
    _held: deque[tuple[Peek | None, Incoming]] = field(default_factory=deque[tuple[Peek | None, Incoming]])
    _epoch: int = 0

    def add(self, message: Incoming) -> list[Joined]:
        """One more message; what may be computed now, in order."""
        place = peek(message.data)
        if place is not None:
            self._epoch = max(self._epoch, place.epoch)
            if place.is_side:
                self._sides.setdefault((place.epoch, place.number), []).append(message.data)
                while len(self._sides) > MAX_SIDES:
                    del self._sides[next(iter(self._sides))]
                return self._ready()
        self._held.append((place, message))
        return self._ready()

    def rest(self) -> list[Joined]:
        """All that still waits: nothing more will come."""
        return [self._joined() for _ in range(len(self._held))]

    def _ready(self) -> list[Joined]:
        found: list[Joined] = []
        while self._held and self._complete(self._held[0][0]):
            found.append(self._joined())
        return found

    def _complete(self, place: Peek | None) -> bool:
        if not self.last or place is None or place.epoch < self._epoch:
            return True
        return len(self._sides.get((place.epoch, place.number), ())) >= place.sides

    def _joined(self) -> Joined:
        place, message = self._held.popleft()
        sides = self._sides.pop((place.epoch, place.number), []) if place and place.sides else []
        return Joined(message.data, message.reply, tuple(sides))
