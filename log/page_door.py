"""The door of the pages that a client of a log has for others: HTTPS, and who may see what, by the users and rights of the log.

Who asks shows what he logs in with at the broker: a name and a password (basic), a token (bearer), or a certificate. The first
two are tried at the broker, which delays, counts and audits them like any other login, and says what they may do to the group
of the application. A certificate cannot be handed on; that of the application itself is let in. `Asker` is the other side.
"""

from __future__ import annotations

import base64
import hashlib
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from .client import LoginRefused, Security, connect
from .client.logins import token_of
from .errors import InvalidInput, LogflumeError
from .http_login import Verdict, basic_credentials
from .own_rights import own_rights
from .security import ClientAuth, describe_certificates, load_key_material, load_trust, server_context

MAX_TOKEN_CHARS = 32 * 1024
KNOWN_S = 10.0
"""So long what the broker said counts: a user who was deleted, or a right that was taken, is noticed by then."""
MAX_KNOWN = 1_000
MAX_STRANGERS = 2
"""Logins of unknown senders at a time; whoever is known is not kept waiting by them."""
_LOGIN_TIMEOUT_S = 5.0
_BY_NAME = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_BY_TOKEN = "OAUTHBEARER"

Rights = Callable[[Security], frozenset[str]]
"""What somebody who logs in so may do to the application's group. Raises LoginRefused: nobody."""


def asking_rights(where: str, group_id: str) -> Rights:
    """Return how the broker at an address is asked what somebody may do to a group."""

    def ask(security: Security) -> frozenset[str]:
        with connect(where, security=security, timeout_s=_LOGIN_TIMEOUT_S) as log:
            _, group = own_rights(log.admin(), topics=(), groups=[group_id])
            return frozenset(group.operations)

    return ask


class PageDoor:
    """Judges who asks for pages. `context` is that of the port. Thread-safe; `judge` blocks while the broker is asked."""

    def __init__(
        self, security: Security, certificate: Path, rights: Rights, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`security`: how the application itself logs in; `certificate`: PEM, of this host, with its key.

        Raises InvalidInput: there are no users to ask about, or the certificate cannot be used.
        """
        self._is_by_login = security.has_sasl and security.mechanism in (*_BY_NAME, _BY_TOKEN)
        self._own_subject = security.certificate_subject()
        if not security.has_tls or not (self._is_by_login or self._own_subject):
            raise InvalidInput(
                f"a login by {security!r} cannot be shown to another instance: expected security.protocol SASL_SSL with "
                f"{', '.join((*_BY_NAME, _BY_TOKEN))}, or SSL with a certificate"
            )
        trust_pem = load_trust(location=security.settings.get("ssl.ca.location", ""), what="ssl.ca")
        material = load_key_material(location=str(certificate), what="endpoint_certificate")
        if not material.certificate.names:
            raise InvalidInput(
                f"{certificate} is a certificate of no host, which nobody would take from a server; "
                "`logflume cert issue NAME --host HOST` makes one"
            )
        wants_certificates = bool(trust_pem and self._own_subject)
        self.context = server_context(
            material,
            trust_pem=trust_pem if wants_certificates else b"",
            client_auth=ClientAuth.REQUESTED if wants_certificates else ClientAuth.NONE,
            crl_pem=security.crl_pem(),
        )
        self._security, self._rights, self._monotonic_s = security, rights, monotonic_s
        self._known_lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[float, frozenset[str]]] = OrderedDict()
        self._strangers = threading.BoundedSemaphore(MAX_STRANGERS)

    def judge(self, authorization: str, certificate: bytes | None, operation: str) -> Verdict:
        """Return whether the sender of a request may see what takes a right to the group.

        `authorization`: the header, "" without; `certificate`: the one that was checked by TLS (DER).
        """
        if certificate and self._own_subject and not authorization:
            (shown,) = describe_certificates(certificate, where="the client's certificate")
            return Verdict.WELCOME if shown.subject == self._own_subject else Verdict.FORBIDDEN
        login = _login(self._security, authorization) if self._is_by_login else None
        if login is None:
            return Verdict.UNKNOWN
        digest = hashlib.sha256(authorization.encode()).digest()
        now_s = self._monotonic_s()
        with self._known_lock:
            end_s, operations = self._known.get(digest, (None, frozenset[str]()))
        if end_s is None or end_s < now_s:
            is_stranger = end_s is None
            if is_stranger and not self._strangers.acquire(blocking=False):
                return Verdict.BUSY
            try:
                operations = self._rights(login)
            except (LoginRefused, InvalidInput):
                with self._known_lock:
                    self._known.pop(digest, None)
                return Verdict.UNKNOWN
            except LogflumeError:
                return Verdict.BUSY
            finally:
                if is_stranger:
                    self._strangers.release()
            self._remember(digest, now_s + KNOWN_S, operations)
        return Verdict.WELCOME if operation in operations else Verdict.FORBIDDEN

    def _remember(self, digest: bytes, end_s: float, operations: frozenset[str]) -> None:
        """Keep what the broker said; it counts from when it was asked."""
        with self._known_lock:
            self._known[digest] = end_s, operations
            self._known.move_to_end(digest)
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)


class Asker:
    """How a client of a log asks pages behind a door: as whoever it is at the broker. `security` None: as nobody."""

    def __init__(self, security: Security | None) -> None:
        self._security = security if security is not None and security.has_tls else None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the TLS of requests; its files are read once. Raises InvalidInput."""
        if self._context is None:
            found = self._security.context() if self._security is not None else None
            self._context = found or ssl.create_default_context()
        return self._context

    def headers(self) -> dict[str, str]:
        """Return what says who asks; secrets are read anew.

        Where instances answer, members of their group say: an address alone must not get a password. So whoever is asked has
        to have a certificate of the cluster's own authority, not of any that the system trusts.

        Raises InvalidInput, LoginRefused: the secrets cannot be had, or would be shown to anybody.
        """
        if self._security is None or not self._security.has_sasl:
            return {}
        if not (self._security.settings.get("ssl.ca.location") and self._security.checks_host):
            raise InvalidInput(
                "a login is shown to instances whose certificate is of the cluster's own authority and of their host only: set "
                "ssl.ca.location, and leave ssl.endpoint.identification.algorithm at https"
            )
        if self._security.mechanism in _BY_NAME:
            pair = f"{self._security.username}:{self._security.secret('sasl.password')}"
            return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
        return {"Authorization": f"Bearer {token_of(self._security)}"} if self._security.mechanism == _BY_TOKEN else {}


def _login(security: Security, authorization: str) -> Security | None:
    """Return how the sender of a header logs in at the broker, None if that is no login of the application's kind."""
    kept = {name: value for name, value in security.settings.items() if not name.startswith("sasl.")}
    kept["sasl.mechanism"] = security.mechanism
    if security.is_delegated:
        kept["sasl.scram.tokenauth"] = "true"
    if security.mechanism == _BY_TOKEN:
        scheme, _, token = authorization.partition(" ")
        is_token = scheme.lower() == "bearer" and 0 < len(token) <= MAX_TOKEN_CHARS
        return Security({**kept, "sasl.oauthbearer.token": token.strip()}) if is_token else None
    try:
        user, password = (part.decode() for part in basic_credentials(authorization) or (b"", b""))
    except UnicodeDecodeError:
        return None
    return Security({**kept, "sasl.username": user, "sasl.password": password}) if user and password else None
