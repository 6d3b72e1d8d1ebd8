"""Takes a connection apart into its steps (name, port, TLS, login, rights) and says how far it comes: for `logflume doctor`."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from logflume.log.errors import LogflumeError

from .log import connect
from .security import Security
from .where import parse_where, security_of
from .wire import Address

STEP_TIMEOUT_S = 5.0
WARN_DAYS = 30
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Step:
    """A step: what was found, or where `is_ok` is not, what is wrong; `advice` where something is to be done."""

    name: str
    is_ok: bool
    found: str
    advice: str = ""


def probe(where: str | os.PathLike[str]) -> Iterator[Step]:
    """Yield the steps to the first address, up to the one that fails. Raises InvalidInput: that is no address."""
    target = parse_where(where)
    if isinstance(target, Path) or target[0].path:
        return
    address, security = target[0], security_of(where)
    steps = [_name(address), _port(address), *([_certificate(address, security)] if security.has_tls else [])]
    for step in steps:
        found = next(step)
        yield found
        if not found.is_ok:
            return
    yield from _login(where, security)


def _name(address: Address) -> Iterator[Step]:
    try:
        found = sorted({str(info[4][0]) for info in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)})
        yield Step("name", True, f"{address.host} is {', '.join(found)}")
    except OSError:
        yield Step("name", False, f"the host name {address.host} is not known", "correct it, or ask who runs the name service")


def _port(address: Address) -> Iterator[Step]:
    began_s = time.perf_counter()
    try:
        socket.create_connection((address.host, address.port), timeout=STEP_TIMEOUT_S).close()
        yield Step("port", True, f"{address} takes connections, within {(time.perf_counter() - began_s) * 1000:.0f} ms")
    except OSError as error:
        advice = "does the broker run, on this port, and does a firewall let you?"
        yield Step("port", False, f"{address}: {error.strerror or 'no answer'}", advice)


def _certificate(address: Address, security: Security) -> Iterator[Step]:
    """Whether the broker's certificate is trusted; whose it is, and until when."""
    from logflume.log.security import describe_certificates

    try:
        context = security.context()
        assert context is not None
        with (
            socket.create_connection((address.host, address.port), timeout=STEP_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as sock,
        ):
            (shown,) = describe_certificates(sock.getpeercert(binary_form=True) or b"", where=str(address))
            version, cipher = sock.version(), (sock.cipher() or ("",))[0]
    except ssl.SSLCertVerificationError as error:
        advice = "ssl.ca.location names the authority; the certificate names the hosts that it is for"
        yield Step("tls", False, f"the certificate is not good: {error.verify_message}", advice)
        return
    except LogflumeError as error:
        yield Step("tls", False, str(error))
        return
    except OSError as error:
        found = getattr(error, "reason", None) or error.strerror or str(error) or "it ended the handshake"
        yield Step("tls", False, str(found), "is this a listener with TLS, and does it want a client's certificate?")
        return
    left_days = shown.expires_in_s(time.time()) / DAY_S
    advice = f"it ends in {left_days:.0f} days: renew it" if left_days < WARN_DAYS else ""
    yield Step("tls", True, f"{version}, {cipher}; {shown.subject} until {shown.not_after.date()}, by {shown.issuer}", advice)


def _login(where: str | os.PathLike[str], security: Security) -> Iterator[Step]:
    """The login, and what it may do to the cluster and its topics."""
    by = f"{security.username or 'a token'} by {security.mechanism}" if security.has_sasl else "without a login"
    try:
        with connect(where, timeout_s=STEP_TIMEOUT_S * 2) as log:
            yield Step("login", True, by)
            visible = log.admin().request("Metadata", topics=None).topics
            names = [topic.name for topic in visible if not topic.is_internal]
            advice = "" if names else "if there should be some: `logflume acl create` gives rights"
            yield Step("rights", True, f"{len(names)} topics may be seen", advice)
    except LogflumeError as error:
        yield Step("login", False, str(error), "check sasl.mechanism, the user and the password (logflume user list)")
