# pyright: basic
"""Why a broker does not let us in, or must not get anything from us: in words that say what to do."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final

from engine.contract.errors import BrokerError
from engine.transport.address import shown
from engine.transport.nats_client import NoTlsError

REFUSALS: Final = ("authorization", "authentication")  # in the broker's own words, lower case
EXPIRED: Final = 10  # OpenSSL's numbers of what is wrong with a certificate
NOT_YET_VALID: Final = 9
OTHER_NAME: Final = (62, 64)  # of a host, of an address
UNKNOWN_KEY: Final = "authorization violation"
log = logging.getLogger("shardline.transport")


class Trouble:
    """Ends the first attempt to connect when it is hopeless; later, while reconnecting, says each trouble once.

    A key that the broker does not know any more ends us: only a restart reads another one.
    """

    def __init__(self, url: str, refused: "asyncio.Future[str]", end: Callable[[BrokerError], None]) -> None:
        self._url, self._refused, self._end = url, refused, end
        self._told = ""

    def hear(self, error: Exception) -> None:
        """Take in what the client library reports."""
        words = refusal(self._url, error)
        if words and not self._refused.done():
            self._refused.set_result(words)
        elif UNKNOWN_KEY in str(error).lower():
            self._end(BrokerError(words))
        elif words and words != self._told:
            self._told = words
            log.error("%s", words)

    def over(self) -> None:
        """Connected again."""
        self._told = ""


def who(url: str) -> str:
    """How to call us in messages."""
    credentials = getattr(url, "credentials", None)
    return f"the key {credentials}" if credentials else "us, who have no key,"


def refusal(url: str, error: Exception) -> str:
    """What to tell somebody who will never be let in like this, or must not go in; "" for what may pass."""
    ca, where = getattr(url, "tls_ca", None), shown(url)
    if isinstance(error, NoTlsError):
        return f"the broker at {where} offers no TLS although --tls-ca is given: nothing was sent to it"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the broker at {where} {_flaw(error, ca)}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with the broker at {where}: {error.reason or error}"
    if any(word in str(error).lower() for word in REFUSALS):
        credentials = getattr(url, "credentials", None)
        cure = f"it does not know the key {credentials}" if credentials else "it wants a key: give --credentials"
        return f"the broker at {where} refuses us: {cure} ({str(error).removeprefix('nats: ')})"
    return ""


def _flaw(error: ssl.SSLCertVerificationError, ca: object) -> str:
    if error.verify_code == EXPIRED:
        return "has expired: 'shardline broker-config' makes a new one, then reload the broker"
    if error.verify_code == NOT_YET_VALID:
        return "is not valid yet: is the clock of this machine right?"
    if error.verify_code in OTHER_NAME:
        return f"is for other names ({error.verify_message}): make it again with --host for the name used here"
    known = f"is not of the authority in {ca}" if ca else "is of an authority that nobody here knows: give --tls-ca"
    return f"{known} ({error.verify_message})"
