# pyright: basic
"""Where the broker is, who we are there, and whose certificate we believe."""

import secrets
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from engine.contract.errors import UsageError

OTHERS: Final = 0o037  # who may read a key: its owner, and a group that cannot change it
JWT: Final = "-----BEGIN NATS USER JWT-----"


class BrokerUrl(str):
    """One address of the broker, or several with commas between. A plain str: no key, the system's authorities."""

    credentials: Path | None  # of a role (`shardline broker-config` writes them), or a .creds file
    tls_ca: Path | None

    def __new__(cls, url: str, *, credentials: Path | None = None, tls_ca: Path | None = None) -> Self:
        """Keep the files beside the address: whoever passes it on passes them on."""
        made = super().__new__(cls, url)
        made.credentials, made.tls_ca = credentials, tls_ca
        return made


def shown(url: str) -> str:
    """An address for messages: without the password, or whatever else is before the host."""
    return ",".join(_without_user(part) for part in url.split(","))


def _without_user(part: str) -> str:
    user, at, host = part.rpartition("@")
    scheme, found, _ = user.partition("://")
    return f"{scheme + found if found else ''}***@{host}" if at else part


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a role."""

    seed: str
    public: str

    @property
    def inbox(self) -> str:
        """What subjects of answers to us begin with: only this key may listen there."""
        return inbox_of(self.public)

    @classmethod
    def of(cls, seed: str) -> Self:
        """The key with a seed. Raises ValueError."""
        import nkeys  # noqa: PLC0415  only who has a key needs it

        try:
            return cls(seed, bytes(nkeys.from_seed(bytearray(seed.encode())).public_key).decode())
        except (nkeys.NkeysError, ValueError, KeyError, IndexError) as error:
            raise ValueError("its seed is damaged") from error

    @classmethod
    def new(cls) -> Self:
        """A key that nobody else has."""
        import nkeys  # noqa: PLC0415  only who has a key needs it

        return cls.of(nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER).decode())


def inbox_of(public: str) -> str:
    """The beginning of answers' subjects for whoever has this public key."""
    return f"_INBOX.{public}"


def load_key(path: Path) -> Key:
    """The key in a file: the line that begins with SU. Raises UsageError: missing, no key, or open to others."""
    seeds = [line.strip() for line in _read(path).splitlines() if line.strip().startswith("SU")]
    if not seeds:
        raise UsageError(f"{path} holds no key: 'shardline broker-config' writes one for each role, in keys/")
    try:
        return Key.of(seeds[0])
    except ValueError as error:
        raise UsageError(f"{path} holds no key: {error}") from error


def _read(path: Path) -> str:
    try:
        if sys.platform != "win32" and path.stat().st_mode & OTHERS:
            raise UsageError(f"others on this machine can read the key {path}: chmod 600 {path}")
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the key {path}: {error}") from error


def tls_context(ca: Path) -> ssl.SSLContext:
    """Believe only this authority. Raises UsageError."""
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"cannot use the authority's certificate {ca}: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def connect_options(url: str) -> dict[str, Any]:
    """What the client library is told besides the address. Raises UsageError."""
    options: dict[str, Any] = {}
    credentials, ca = getattr(url, "credentials", None), getattr(url, "tls_ca", None)
    if credentials is not None and JWT in _read(credentials):
        options["user_credentials"] = str(credentials)
    elif credentials is not None:
        key = load_key(credentials)
        options |= {"nkeys_seed_str": key.seed, "inbox_prefix": key.inbox}
    if ca is not None:
        options["tls"] = tls_context(ca)
    return options
