"""A certificate authority of our own, and the broker's certificate. Needs the package cryptography: `[tls]`."""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engine.contract.errors import UsageError
from engine.local.secret import write_secret

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as missing:
    raise UsageError("certificates need a package more: pip install 'shardline[tls]'") from missing

CA_DAYS: Final = 3650
BACKDATED: Final = datetime.timedelta(hours=1)  # clocks of other machines may be behind
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def write_certificates(folder: Path, hosts: Sequence[str], *, days: int) -> bool:
    """Write `ca.pem` and `ca.key` unless they are there, and a new `server.pem` and `server.key` for these hosts.

    Returns whether the authority is new. Raises UsageError: `ca.pem` without `ca.key`, which may be kept elsewhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    new = not (folder / "ca.pem").exists()
    if new:
        _write_authority(folder)
    if not (folder / "ca.key").exists():
        raise UsageError(f"{folder / 'ca.key'} is not there: bring it back to sign a certificate, or remove ca.pem too")
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    ca_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([_name(host) for host in dict.fromkeys((*hosts, *LOOPBACK))])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])  # routes are both
    builder = _builder(f"shardline broker {hosts[0] if hosts else 'localhost'}"[:64], days).issuer_name(ca.subject)
    signed = (
        builder.public_key(key.public_key())
        .add_extension(names, critical=False)
        .add_extension(usage, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    _write_pair(folder, "server", signed, key)
    return new


def _write_authority(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder("shardline authority", CA_DAYS)
    signs_only = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    signed = (
        builder.issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shardline authority")]))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs_only, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_pair(folder, "ca", signed, key)


def _builder(name: str, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    begin = min(now, now + datetime.timedelta(days=days)) - BACKDATED
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_pair(folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_secret(folder / f"{name}.key", key.private_bytes(pem, *plain))
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(pem))
