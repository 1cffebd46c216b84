"""The twin of a broker's file store."""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.transport.base import Kept


@dataclass(eq=False)
class FileShelf:
    """What one file store keeps."""

    subject: str
    kept: dict[str, Kept] = field(default_factory=dict[str, Kept])  # the newest last

    def captures(self, pattern: tuple[str, ...]) -> bool:
        """Whether a pattern names something below this store's subject."""
        own = self.subject.split(".")
        return len(pattern) > len(own) and all(a in ("*", b) for a, b in zip(pattern, own, strict=False))


class MemoryFiles:
    """See FileStore."""

    def __init__(self, shelf: FileShelf, connected: Callable[[], bool]) -> None:
        self._shelf, self._connected = shelf, connected

    async def put(self, name: str, data: bytes, *, digest: str) -> None:
        """See FileStore."""
        self._check()
        self._shelf.kept.pop(name, None)
        self._shelf.kept[name] = Kept(bytes(data), digest)

    async def get(self, name: str) -> Kept | None:
        """See FileStore."""
        self._check()
        if name.endswith(".*"):
            return next((kept for key, kept in reversed(self._shelf.kept.items()) if _below(key, name[:-2])), None)
        return self._shelf.kept.get(name)

    async def names(self, group: str) -> set[str]:
        """See FileStore."""
        self._check()
        return {key.rpartition(".")[2] for key in self._shelf.kept if _below(key, group)}

    async def remove(self, names: str) -> None:
        """See FileStore."""
        self._check()
        for key in [key for key in self._shelf.kept if names in (">", key) or _below(key, names.removesuffix(".*"))]:
            del self._shelf.kept[key]

    def _check(self) -> None:
        if not self._connected():
            raise ConnectionError("not connected to the broker")


def _below(name: str, group: str) -> bool:
    return name.rpartition(".")[0] == group
