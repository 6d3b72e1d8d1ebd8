"""TLS of a listener: its context from the settings, made anew when files change; sockets that encrypt; handshakes in turns."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from logflume.log.broker.requests import ANONYMOUS
from logflume.log.broker.security.listener_settings import ListenerSettings
from logflume.log.broker.security.principals import PrincipalRules
from logflume.log.errors import InvalidInput, LogflumeError
from logflume.log.security import Certificate, ClientAuth, describe_certificates, load_key_material, load_trust, server_context

CHUNK_BYTES = 64 * 1024
"""At most so many bytes are encrypted in one call: four records of TLS."""
TURN_S = 0.002
"""For so long handshakes go on in a turn of the loop; then clients that are connected have theirs."""
WARN_DAYS = 30
DAY_S = 86_400
_FILES = ("ssl.keystore.location", "ssl.truststore.location", "logflume.ssl.crl.location")
_log = logging.getLogger("logflume.tls")


@dataclass(frozen=True, slots=True)
class _Loaded:
    context: ssl.SSLContext
    certificate: Certificate
    mark: tuple[Any, ...]
    """What it was made of: settings, and the files' times and sizes."""


class ListenerTls:
    """The context of a listener. Invariant: `context` works; a change that does not is reported and not taken."""

    def __init__(self, settings: ListenerSettings) -> None:
        """Raises InvalidInput: the settings, or the files they name, do not fit together."""
        self._settings = settings
        self.rules = PrincipalRules(settings.text("ssl.principal.mapping.rules"))
        self._loaded = self._load()
        self._refused_mark: tuple[Any, ...] | None = None
        self._warned_day: int | None = None
        self.reloads, self.failed_reloads = 0, 0

    @property
    def context(self) -> ssl.SSLContext:
        return self._loaded.context

    @property
    def certificate(self) -> Certificate:
        return self._loaded.certificate

    def refresh(self, now_s: float) -> None:
        """Take over what changed in settings and files, for new connections; warn of a certificate that ends soon, once a day."""
        mark = self._mark()
        if mark not in (self._loaded.mark, self._refused_mark):
            try:
                self._loaded = self._load()
                self.reloads += 1
                _log.info(
                    "listener %s: a new certificate, valid until %s", self._settings.name, self.certificate.not_after.date()
                )
            except LogflumeError as error:
                self.failed_reloads += 1
                self._refused_mark = mark
                _log.error("listener %s keeps its old certificate: %s", self._settings.name, error)
        left_days = self.certificate.expires_in_s(now_s) / DAY_S
        if left_days < WARN_DAYS and self._warned_day != int(now_s // DAY_S):
            self._warned_day = int(now_s // DAY_S)
            text = "listener %s: the certificate of %s %s %s; issue a new one (logflume cert renew)"
            ends = "ends on" if left_days > 0 else "has ended on"
            _log.warning(text, self._settings.name, self.certificate.subject, ends, self.certificate.not_after.date())

    def principal(self, sock: ssl.SSLSocket) -> str:
        """Return who a client is by its certificate. Raises InvalidInput: no rule is about it."""
        der = sock.getpeercert(binary_form=True)
        if not der:
            return ANONYMOUS
        (certificate,) = describe_certificates(der, where="the client's certificate")
        name = self.rules.name(certificate.subject)
        if not name:
            raise InvalidInput(f"no rule of ssl.principal.mapping.rules is about {certificate.subject[:200]}")
        return f"User:{name}"

    def _mark(self) -> tuple[Any, ...]:
        stamps = []
        for name in _FILES:
            path = self._settings.text(name)
            try:
                status = os.stat(path) if path else None
            except OSError:
                status = None
            stamps.append((path, status and (status.st_mtime_ns, status.st_size, status.st_ino)))
        return (
            *stamps,
            self._settings.text("ssl.keystore.certificate.chain"),
            self._settings.text("ssl.truststore.certificates"),
        )

    def _load(self) -> _Loaded:
        settings, mark = self._settings, self._mark()
        material = load_key_material(
            location=settings.text("ssl.keystore.location"),
            store_type=settings.text("ssl.keystore.type"),
            password=settings.text("ssl.keystore.password"),
            key_password=settings.text("ssl.key.password"),
            chain_text=settings.text("ssl.keystore.certificate.chain"),
            key_text=settings.text("ssl.keystore.key"),
            what=f"listener {settings.name}: ssl.keystore",
        )
        trust_pem = load_trust(
            location=settings.text("ssl.truststore.location"),
            store_type=settings.text("ssl.truststore.type"),
            password=settings.text("ssl.truststore.password"),
            text=settings.text("ssl.truststore.certificates"),
            what=f"listener {settings.name}: ssl.truststore",
        )
        # Where users log in by SASL a certificate is asked for only if the listener itself says so, as in Apache Kafka.
        asked = settings.own_text("ssl.client.auth") if settings.has_sasl else settings.text("ssl.client.auth")
        context = server_context(
            material,
            trust_pem=trust_pem,
            client_auth=ClientAuth(asked or "none"),
            versions=settings.parts("ssl.enabled.protocols"),
            ciphers=settings.parts("ssl.cipher.suites"),
            crl_pem=_revoked(settings.text("logflume.ssl.crl.location")),
        )
        return _Loaded(context, material.certificate, mark)


def _revoked(path: str) -> bytes:
    if not path:
        return b""
    try:
        with open(path, "rb") as file:
            content = file.read(1 << 24)
    except OSError as error:
        raise InvalidInput(f"logflume.ssl.crl.location {path} cannot be read: {error.strerror or error}") from None
    if b"-----BEGIN X509 CRL-----" not in content:
        raise InvalidInput(f"logflume.ssl.crl.location {path} has no list of revoked certificates (X509 CRL in PEM)")
    return content


class TlsSocket:
    """A connected TLS socket with the calls of a plain one that a connection makes.

    OpenSSL wants the bytes again that it could not send, at least as many: callers send in order, and what is taken of them
    is always as much as there is, up to CHUNK_BYTES.
    """

    __slots__ = ("_file_chunk", "_file_key", "_sock")

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._file_key: tuple[int, int] | None = None
        self._file_chunk = b""

    @property
    def has_received(self) -> bool:
        """Whether there are decrypted bytes that no selector tells of."""
        return self._sock.pending() > 0

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv_into(self, room: memoryview) -> int:
        """Raises BlockingIOError, OSError."""
        try:
            return self._sock.recv_into(room)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            raise OSError("it asks for new keys and does not read") from None

    def sendmsg(self, buffers: list[Any], ancillary: tuple[()] = (), flags: int = 0) -> int:
        """Raises BlockingIOError, OSError."""
        first = buffers[0]
        if len(first) < CHUNK_BYTES and len(buffers) > 1:
            taken, size_bytes = [], 0
            for each in buffers:
                part = memoryview(each)[: CHUNK_BYTES - size_bytes]
                taken.append(part)
                size_bytes += len(part)
                if size_bytes >= CHUNK_BYTES:
                    break
            first = b"".join(taken)
        return self._send(memoryview(first)[:CHUNK_BYTES])

    def send_file(self, fd: int, position: int, size_bytes: int) -> int:
        """Send of a file; 0 at its end. Raises BlockingIOError, OSError."""
        if self._file_key != (fd, position):
            self._file_chunk = os.pread(fd, min(size_bytes, CHUNK_BYTES), position)
            self._file_key = (fd, position)
        if not self._file_chunk:
            return 0
        sent = self._send(memoryview(self._file_chunk))
        self._file_key, self._file_chunk = None, b""
        return sent

    def close(self) -> None:
        self._sock.close()

    def _send(self, chunk: memoryview) -> int:
        try:
            return self._sock.send(chunk)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            raise BlockingIOError from None


class Handshakes:
    """TLS handshakes under way, on the loop's thread, in turns so short that those who are connected do not notice.

    Invariant: each socket in `_open` is registered with the loop, or in `_ready` waits for its turn, or is in a call of `_step`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: dict[int, _Handshake] = {}
        self._ready: deque[_Handshake] = deque()
        self._until_s: float | None = None
        """When the turn under way has had its time, None between turns."""
        self.outcomes: Counter[str] = Counter()
        """Handshakes by outcome: ok, failed, late."""

    def __len__(self) -> int:
        return len(self._open)

    def begin(
        self, sock: socket.socket, tls: ListenerTls, *, done: Callable[[ssl.SSLSocket], None], failed: Callable[[str], None]
    ) -> None:
        """Begin a handshake; `done` or `failed` is called once. The socket is closed before `failed`."""
        try:
            wrapped = tls.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True)
        except OSError as error:
            sock.close()
            failed(str(error))
            return
        each = _Handshake(wrapped, self._loop.time(), done, failed)
        self._open[wrapped.fileno()] = each
        self._register(each, is_writing=False)

    def end_late(self, now_s: float, limit_s: float) -> None:
        """End those that take longer than the limit."""
        for each in [each for each in self._open.values() if now_s - each.began_s > limit_s]:
            self._fail(each, "the TLS handshake took too long (logflume.login.timeout.ms)", "late")

    def close(self) -> None:
        for each in list(self._open.values()):
            self._fail(each, "the broker is stopping", "stopped")

    def _is_ready(self, each: _Handshake) -> None:
        """Go on with a handshake while the turn has time left; it stays registered, as it mostly has to wait once more."""
        if self._until_s is None:
            self._until_s = perf_counter() + TURN_S
            self._loop.call_soon(self._turn)
        if perf_counter() < self._until_s:
            self._step(each)
        else:
            self._unregister(each)
            self._ready.append(each)

    def _turn(self) -> None:
        """Begin a turn with those that had no time in the last one."""
        self._until_s = None
        if not self._ready:
            return
        self._until_s = perf_counter() + TURN_S
        self._loop.call_soon(self._turn)
        while self._ready and perf_counter() < self._until_s:
            each = self._ready.popleft()
            if each.sock.fileno() in self._open:
                self._step(each)

    def _step(self, each: _Handshake) -> None:
        try:
            each.sock.do_handshake()
        except ssl.SSLWantReadError:
            self._register(each, is_writing=False)
            return
        except ssl.SSLWantWriteError:
            self._register(each, is_writing=True)
            return
        except OSError as error:
            reason = _reason(error)
            self._fail(each, reason if reason == LEFT else f"the TLS handshake failed: {reason}", "failed")
            return
        self._unregister(each)
        del self._open[each.sock.fileno()]
        self.outcomes["ok"] += 1
        each.done(each.sock)

    def _fail(self, each: _Handshake, reason: str, outcome: str) -> None:
        self._unregister(each)
        self._open.pop(each.sock.fileno(), None)
        self.outcomes[outcome] += 1
        each.sock.close()
        each.failed(reason)

    def _register(self, each: _Handshake, *, is_writing: bool) -> None:
        if each.is_writing is not is_writing:
            self._unregister(each)
            add = self._loop.add_writer if is_writing else self._loop.add_reader
            add(each.sock.fileno(), self._is_ready, each)
            each.is_writing = is_writing

    def _unregister(self, each: _Handshake) -> None:
        if each.is_writing is not None:
            remove = self._loop.remove_writer if each.is_writing else self._loop.remove_reader
            remove(each.sock.fileno())
            each.is_writing = None


@dataclass(slots=True, eq=False)
class _Handshake:
    sock: ssl.SSLSocket
    began_s: float
    done: Callable[[ssl.SSLSocket], None]
    failed: Callable[[str], None]
    is_writing: bool | None = None
    """What it is registered for with the loop: to be written to or to be read from; None: it is not."""


LEFT = "the client went away"


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        return LEFT
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return error.strerror or LEFT
