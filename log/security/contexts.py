"""TLS contexts with a modern default: TLS 1.2 and 1.3, forward secrecy, authenticated ciphers, no compression or renegotiation.

Keys go to OpenSSL through memory, never through a file of ours.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator, Sequence
from enum import Enum

from logflume.log.errors import InvalidInput

from .stores import KeyMaterial

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
DEFAULT_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_JAVA_CIPHERS = {
    f"TLS_ECDHE_{kind}_WITH_{java}": f"ECDHE-{kind}-{openssl}"
    for kind in ("RSA", "ECDSA")
    for java, openssl in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}
_TLS13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")


class ClientAuth(Enum):
    """`ssl.client.auth`: whether clients show a certificate."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


def server_context(
    material: KeyMaterial,
    *,
    trust_pem: bytes = b"",
    client_auth: ClientAuth = ClientAuth.NONE,
    versions: Sequence[str] = (),
    ciphers: Sequence[str] = (),
    crl_pem: bytes = b"",
) -> ssl.SSLContext:
    """Return the context of a listener.

    Args:
        trust_pem: authorities of client certificates; needed with `client_auth`.
        crl_pem: revoked certificates of each of those authorities; without it none is revoked.

    Raises InvalidInput.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context, versions, ciphers)
    _load_key(context, material)
    # Taken up again, a session of TLS 1.3 costs as much as a new one with a key on P-256, each ticket a sixth of it, used or not;
    # and a certificate that was revoked since is not looked at again. Clients of TLS 1.2 keep theirs: that saves them two thirds.
    context.num_tickets = 0
    if client_auth is not ClientAuth.NONE:
        if not trust_pem:
            raise InvalidInput(
                f"ssl.client.auth={client_auth.value} needs the authorities of clients: set ssl.truststore.location"
            )
        _load_trust(context, trust_pem, crl_pem)
        context.verify_mode = ssl.CERT_REQUIRED if client_auth is ClientAuth.REQUIRED else ssl.CERT_OPTIONAL
    return context


def client_context(
    *,
    trust_pem: bytes = b"",
    material: KeyMaterial | None = None,
    checks_host: bool = True,
    verifies: bool = True,
    versions: Sequence[str] = (),
    ciphers: Sequence[str] = (),
    crl_pem: bytes = b"",
) -> ssl.SSLContext:
    """Return the context of a client. Without `trust_pem` the system's authorities count. Raises InvalidInput."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context, versions, ciphers)
    context.check_hostname = checks_host and verifies
    context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
    if material is not None:
        _load_key(context, material)
    if trust_pem:
        _load_trust(context, trust_pem, crl_pem)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _harden(context: ssl.SSLContext, versions: Sequence[str], ciphers: Sequence[str]) -> None:
    asked = list(versions) or list(VERSIONS)
    unknown = [name for name in asked if name not in VERSIONS]
    if unknown:
        raise InvalidInput(
            f"ssl.enabled.protocols expects {' or '.join(VERSIONS)}, found {unknown[0][:50]!r}; older ones are broken"
        )
    context.minimum_version = min(VERSIONS[name] for name in asked)
    context.maximum_version = max(VERSIONS[name] for name in asked)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    named = [_JAVA_CIPHERS.get(name, name) for name in ciphers if name not in _TLS13]
    if not named and ciphers and context.minimum_version is not ssl.TLSVersion.TLSv1_3:
        raise InvalidInput("ssl.cipher.suites names suites of TLS 1.3 only: set ssl.enabled.protocols=TLSv1.3 too, or add others")
    try:
        context.set_ciphers(":".join(named) or DEFAULT_CIPHERS)
    except ssl.SSLError:
        raise InvalidInput(f"ssl.cipher.suites: none of {', '.join(named)[:200]} is known here") from None


def _load_key(context: ssl.SSLContext, material: KeyMaterial) -> None:
    with _in_memory(material.key_pem + material.chain_pem) as path:
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:
            subject = material.certificate.subject
            raise InvalidInput(f"the certificate of {subject} cannot be used: {error.reason or error}") from None


def _load_trust(context: ssl.SSLContext, trust_pem: bytes, crl_pem: bytes) -> None:
    try:
        context.load_verify_locations(cadata=trust_pem.decode())
        if crl_pem:
            with _in_memory(crl_pem) as path:
                context.load_verify_locations(cafile=path)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    except ssl.SSLError as error:
        raise InvalidInput(f"the authorities cannot be used: {error.reason or error}") from None


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Yield a path under which OpenSSL reads the content, which is in memory only."""
    fd = os.memfd_create("logflume", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
