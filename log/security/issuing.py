"""A small certificate authority: makes itself, and issues certificates of servers and clients (keys on P-256).

What it makes is PEM text in memory; where it is kept is the caller's business.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from logflume.log.errors import InvalidInput
from logflume.log.extras import require

AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 397
"""Browsers and some libraries refuse certificates that are valid for longer than 398 days."""
MAX_NAME_CHARS = 64
_BACKDATED = timedelta(minutes=5)
"""For clocks that are behind."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate (PEM) and its private key (PEM, not encrypted)."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)


def make_authority(name: str, *, now: datetime, days: int = AUTHORITY_DAYS) -> Issued:
    """Return a new authority. `now` has a time zone. Raises InvalidInput."""
    require("cryptography", extra="tls", what="TLS")
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    builder = _builder(subject, subject, key.public_key(), now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return _signed(builder, key, key)


def issue(
    authority: Issued,
    name: str,
    *,
    now: datetime,
    hosts: Sequence[str] = (),
    days: int = CERTIFICATE_DAYS,
    is_server: bool = False,
) -> Issued:
    """Return a certificate for a name, of a server (for these hosts and addresses) or of a client.

    Raises InvalidInput: a name, host or number of days that cannot be, or an authority that cannot issue.
    """
    require("cryptography", extra="tls", what="TLS")
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        authority_key: Any = load_pem_private_key(authority.key_pem, None)
        authority_certificate = x509.load_pem_x509_certificate(authority.certificate_pem)
    except (ValueError, TypeError):
        raise InvalidInput("the authority's certificate or key cannot be read") from None
    if now + timedelta(days=days) > authority_certificate.not_valid_after_utc:
        raise InvalidInput(f"the authority itself ends on {authority_certificate.not_valid_after_utc.date()}: ask for fewer days")
    if is_server and not hosts:
        raise InvalidInput("a server's certificate needs the hosts by which clients reach it")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_subject(name), authority_certificate.subject, key.public_key(), now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    usage = ExtendedKeyUsageOID.SERVER_AUTH if is_server else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    return _signed(builder, key, authority_key)


def _builder(subject: Any, issuer: Any, public_key: Any, now: datetime, days: int) -> Any:
    from cryptography import x509

    if not 1 <= days <= AUTHORITY_DAYS:
        raise InvalidInput(f"a certificate is valid for 1 to {AUTHORITY_DAYS} days, found {days}")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _subject(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise InvalidInput(f"the name in a certificate has 1 to {MAX_NAME_CHARS} printable characters, found {name[:80]!r}")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host.encode("idna").decode())
    except UnicodeError:
        raise InvalidInput(f"expected a host name or an address, found {host[:100]!r}") from None


def _key_usage(*, signs_certificates: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: Any, key: Any, signing_key: Any) -> Issued:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    certificate = builder.sign(signing_key, hashes.SHA256())
    return Issued(certificate.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
