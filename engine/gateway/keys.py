"""API keys: a file of hashes, and how much each key may ask.

One key a line: `NAME SHA256 [concurrent=N] [per-minute=N]`. Keys are 256 random bits, so that one round of SHA-256
is enough. The file is read again when it changes.
"""

import hashlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from engine.contract.errors import UsageError
from engine.gateway.errors import ApiError

MINUTE: Final = 60.0
log = logging.getLogger("shardline.gateway")
_LIMITS: Final[tuple[str, ...]] = ("concurrent", "per-minute")


@dataclass(slots=True)
class Key:
    """One key and what it has used."""

    name: str
    concurrent: int = 0  # requests; 0: no limit
    per_minute: int = 0  # requests; 0: no limit
    open: int = 0
    recent: deque[float] = field(default_factory=deque[float])  # when requests began, seconds

    @contextmanager
    def use(self) -> Generator[None]:
        """One request. Raises ApiError when it is one too many."""
        now = time.monotonic()
        while self.recent and self.recent[0] <= now - MINUTE:
            self.recent.popleft()
        if self.concurrent and self.open >= self.concurrent:
            reason = f"key {self.name!r} has {self.open} requests open, its limit"
            raise ApiError(429, reason, code="rate_limit_exceeded", retry_after=1)
        if self.per_minute and len(self.recent) >= self.per_minute:
            wait = int(self.recent[0] + MINUTE - now) + 1
            reason = f"key {self.name!r} has made {self.per_minute} requests in a minute, its limit"
            raise ApiError(429, reason, code="rate_limit_exceeded", retry_after=wait)
        self.open += 1
        self.recent.append(now)
        try:
            yield
        finally:
            self.open -= 1


class Keys:
    """Who may ask; without a file everybody."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._read: tuple[int, int] = (0, 0)  # modification time and size of what was read
        self._keys: dict[str, Key] = {}
        self._refresh(first=True)

    def check(self, authorization: str) -> Key:
        """The key of a bearer header. Raises ApiError (401)."""
        if self._path is None:
            return Key("")
        self._refresh()
        scheme, _, secret = authorization.partition(" ")
        found = self._keys.get(digest(secret.strip())) if scheme.lower() == "bearer" else None
        if found is None:
            reason = "wrong API key" if authorization else "an API key is needed: Authorization: Bearer KEY"
            raise ApiError(401, reason, code="invalid_api_key")
        return found

    def _refresh(self, *, first: bool = False) -> None:
        """Read what has changed; while it cannot be used the keys read last stay. Raises UsageError the first time."""
        if self._path is None:
            return
        try:
            state = self._path.stat()
            now = (state.st_mtime_ns, state.st_size)
            if now == self._read:
                return
            self._read = now
            keys = parse_keys(self._path.read_text())
        except (OSError, UsageError) as error:
            if first:
                raise UsageError(f"the API keys cannot be used: {error}") from error
            log.warning("the API keys cannot be used, those read last stay: %s", error)
            return
        used = {key.name: key for key in self._keys.values()}
        for key in keys.values():
            if before := used.get(key.name):
                key.open, key.recent = before.open, before.recent
        self._keys = keys


def parse_keys(text: str) -> dict[str, Key]:
    """Keys by their digest. Raises UsageError naming the line."""
    keys: dict[str, Key] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        limits = {name: value for name, _, value in (word.partition("=") for word in words[2:])}
        good = len(words) > 1 and len(words[1]) == 64 and set(limits) <= set(_LIMITS)
        if not good or not all(value.isdecimal() for value in limits.values()):
            raise UsageError(f"line {number} of the API keys is not NAME SHA256 [concurrent=N] [per-minute=N]")
        concurrent, per_minute = (int(limits.get(name, 0)) for name in _LIMITS)
        keys[words[1]] = Key(words[0], concurrent, per_minute)
    return keys


def digest(secret: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_key(path: Path, name: str, *, concurrent: int = 0, per_minute: int = 0) -> str:
    """Add a key to the file (made if missing, mode 0600); the key itself, which is kept nowhere. Raises UsageError."""
    if not name or not name.isprintable() or len(name.split()) != 1 or name.startswith("#"):
        raise UsageError(f"{name!r} cannot be the name of a key: one word, please")
    secret = f"sk-{secrets.token_urlsafe(32)}"
    try:
        if not path.exists():
            path.touch(mode=0o600)
        with path.open("a") as file:
            file.write(f"{name} {digest(secret)} concurrent={concurrent} per-minute={per_minute}\n")
    except OSError as error:
        raise UsageError(f"the key cannot be stored: {error}") from error
    return secret
