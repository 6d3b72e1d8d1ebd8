"""Listens on TCP and Unix sockets, makes connections, keeps their number and their idle time bounded."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from logflume.log.broker.access import OWNER
from logflume.log.broker.handlers import Handlers
from logflume.log.broker.requests import ANONYMOUS
from logflume.log.broker.security import Login, LoginPolicy
from logflume.log.errors import InvalidInput, TransportError

from .addresses import WILDCARDS, Address
from .admission import Admission
from .budget import MemoryBudget
from .connection import Connection
from .tls import LEFT, Handshakes, ListenerTls, TlsSocket
from .traffic import Traffic

SWEEP_INTERVAL_S = 5.0
MIN_CONNECTIONS = 32
RESERVED_FILES, FILES_PER_PARTITION = 64, 2
"""Descriptors that connections never get."""
KEPT_IDLE_S = 10.0
"""A connection that was quiet for so long gives its large receive buffer back."""
SWEEP_SETTINGS = (
    "connections.max.idle.ms",
    "logflume.request.receive.timeout.ms",
    "logflume.response.send.timeout.ms",
    "logflume.login.timeout.ms",
)
MAPPED_PREFIX = "::ffff:"
"""Before the addresses of IPv4 clients on a listener of both families; limits, quotas and ACLs name them without it."""
OWNER_HOST = "unix"
"""The host of connections by a Unix socket."""
_log = logging.getLogger("logflume.server")


@dataclass(frozen=True, slots=True)
class Guard:
    """How a listener makes sure who its clients are: by certificates, by logins, both or not at all."""

    tls: ListenerTls | None = None
    logins: LoginPolicy | None = None


class Listener:
    """The listening sockets and all connections of a broker, on the loop's thread.

    Invariant: `_connections` holds every open connection by its id.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, handlers: Handlers, addresses: dict[str, Address]) -> None:
        """`addresses`: listener name -> address told to clients; this fills it in."""
        self._loop, self._handlers, self._addresses = loop, handlers, addresses
        self._sockets: list[tuple[socket.socket, str]] = []
        self.guards: dict[str, Guard] = {}
        self.handshakes = Handshakes(loop)
        self._connections: dict[int, Connection] = {}
        config = handlers.core.config
        self._config = config
        self.admission = Admission(config, most_connections=self._most_connections)
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}
        self.traffic = Traffic()
        self._told_refused: Counter[str] = Counter()
        self.budget = MemoryBudget(lambda: config.number("queued.max.request.bytes"))
        self._ids = itertools.count(1)
        self._sweep_handle = loop.call_later(self._sweep_interval_s(), self._sweep)
        self._on_drained: Callable[[], None] | None = None

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def _most_connections(self) -> int:
        """Return for how many connections there are descriptors: without any left, no segment could be written."""
        open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        partitions = len(self._handlers.core.partitions)
        return max(MIN_CONNECTIONS, open_files - RESERVED_FILES - FILES_PER_PARTITION * partitions)

    def listen(self, name: str, address: Address, *, advertised: Address | None = None, guard: Guard = Guard()) -> Address:
        """Bind and listen; return the address with the port that was bound. Raises TransportError."""
        sock = _bind(address, backlog=self._config.number("socket.listen.backlog.size"))
        sock.setblocking(False)
        bound = address if address.unix_path is not None else Address(address.host, sock.getsockname()[1])
        self._addresses[name] = advertised or bound
        is_per_interface = advertised is None and address.host in WILDCARDS
        self._sockets.append((sock, name))
        self.guards[name] = guard
        self._loop.add_reader(sock.fileno(), self._accept, sock, name, is_per_interface)
        return bound

    def _accept(self, listening: socket.socket, name: str, is_per_interface: bool) -> None:
        """Accept what is waiting, up to a bound per turn."""
        for _ in range(64):
            is_owner = listening.family == socket.AF_UNIX
            pause_s = 0.0 if is_owner else self.admission.pause_s(self._loop.time())
            if pause_s:
                self._pause(listening, name, is_per_interface, pause_s)
                return
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    _log.error("cannot accept a connection: %s; raise the limit of open files (ulimit -n)", error.strerror)
                    self._pause(listening, name, is_per_interface, 1.0)
                return
            host = OWNER_HOST if is_owner else peer[0].removeprefix(MAPPED_PREFIX)
            if not is_owner and not self.admission.admit(host):
                sock.close()
                continue
            sock.setblocking(False)
            if not is_owner and self._is_held(sock, host):
                continue
            own_name = name
            if not is_owner:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._set_buffers(sock)
                if is_per_interface:
                    own_name = self._interface(name, sock)
            guest = _Guest(host, 0 if is_owner else peer[1], own_name, self.guards[name])
            if guest.guard.tls is None:
                self._connect(sock, guest, OWNER if is_owner else ANONYMOUS)
            else:
                self._begin_tls(sock, guest, guest.guard.tls)

    def _begin_tls(self, sock: socket.socket, guest: _Guest, tls: ListenerTls) -> None:
        def done(encrypted: ssl.SSLSocket) -> None:
            try:
                principal = tls.principal(encrypted)
            except InvalidInput as error:
                encrypted.close()
                failed(str(error))
                return
            self._connect(TlsSocket(encrypted), guest, principal)

        def failed(reason: str) -> None:
            self.admission.left(guest.host)
            text = "no connection of %s on listener %s: %s"
            level = logging.DEBUG if reason == LEFT else logging.WARNING
            self._handlers.complaints.say(_log, level, guest.host, text, guest.host, guest.listener, reason)

        self.handshakes.begin(sock, tls, done=done, failed=failed)

    def _connect(self, sock: socket.socket | TlsSocket, guest: _Guest, principal: str) -> None:
        connection_id, policy = next(self._ids), guest.guard.logins
        is_owner, login = principal == OWNER, None
        if policy is not None:  # the owner may log in as somebody else, others must before anything is served
            login = Login(policy, principal=principal if is_owner else ANONYMOUS, host=guest.host, is_required=not is_owner)
        self._connections[connection_id] = Connection(
            sock,
            self._loop,
            self._handlers,
            connection_id=connection_id,
            host=guest.host,
            listener=guest.listener,
            on_close=self._closed,
            budget=self.budget,
            traffic=self.traffic,
            principal=principal,
            port=guest.port,
            login=login,
        )

    def _is_held(self, sock: socket.socket, host: str) -> bool:
        """Whether an address connects too often for its quota: it is left alone for a while, then closed (KIP-612)."""
        quotas = self._handlers.core.quotas
        wait_ms = quotas.connection_wait_ms(host) if quotas.is_active else 0
        if wait_ms:
            self._held[sock] = self._loop.call_later(wait_ms / 1000, self._drop_held, sock, host)
        return wait_ms > 0

    def _drop_held(self, sock: socket.socket, host: str) -> None:
        del self._held[sock]
        sock.close()
        self.admission.left(host)

    def _set_buffers(self, sock: socket.socket) -> None:
        for name, option in (("socket.receive.buffer.bytes", socket.SO_RCVBUF), ("socket.send.buffer.bytes", socket.SO_SNDBUF)):
            size_bytes = self._config.number(name)
            if size_bytes >= 0:
                sock.setsockopt(socket.SOL_SOCKET, option, size_bytes)

    def _interface(self, name: str, sock: socket.socket) -> str:
        """Return a listener name whose address is the local one that this client reached, for listeners on all interfaces."""
        host, port = sock.getsockname()[:2]
        own_name = f"{name}@{host}"
        self._addresses.setdefault(own_name, Address(host, port))
        return own_name

    def _pause(self, listening: socket.socket, name: str, is_per_interface: bool, pause_s: float) -> None:
        """Stop accepting for a while: without descriptors or at the bound on new ones the socket would spin."""
        fd = listening.fileno()
        self._loop.remove_reader(fd)

        def resume() -> None:
            if listening.fileno() == fd:
                self._loop.add_reader(fd, self._accept, listening, name, is_per_interface)

        self._loop.call_later(pause_s, resume)

    def _closed(self, connection: Connection) -> None:
        if self._connections.pop(connection.connection_id, None) is not None and connection.host != OWNER_HOST:
            self.admission.left(connection.host)
        if not self._connections and self._on_drained is not None:
            self._on_drained()

    def _sweep(self) -> None:
        """Close connections that did nothing for too long, or too little; say who was refused since the last time."""
        self._sweep_handle = self._loop.call_later(self._sweep_interval_s(), self._sweep)
        now_s = self._loop.time()
        idle_s, receive_s, send_s, login_s = (self._config.number(name) / 1000 for name in SWEEP_SETTINGS)
        self.handshakes.end_late(now_s, login_s)
        for connection in list(self._connections.values()):
            quiet_s = now_s - connection.active_s
            if connection.is_stalled and now_s - connection.sent_s > send_s:
                connection.close("it does not read its responses (logflume.response.send.timeout.ms)", level=logging.WARNING)
            elif connection.late_s(now_s) > receive_s:
                connection.close("it sends a request too slowly (logflume.request.receive.timeout.ms)", level=logging.WARNING)
            elif connection.is_waiting_for_login and now_s - connection.began_s > login_s:
                connection.close("it did not log in in time (logflume.login.timeout.ms)", level=logging.WARNING)
            elif connection.is_idle and quiet_s > idle_s:
                connection.close("idle for connections.max.idle.ms")
            elif quiet_s > KEPT_IDLE_S:
                connection.give_back()
        self._handlers.complaints.settle(_log)
        for setting, count in self.admission.refused.items():
            if count > self._told_refused[setting]:
                _log.warning("refused %d connections: %s is reached", count - self._told_refused[setting], setting)
                self._told_refused[setting] = count

    def _sweep_interval_s(self) -> float:
        return min(SWEEP_INTERVAL_S, *(self._config.number(name) / 1000 for name in SWEEP_SETTINGS))

    def stop_accepting(self) -> None:
        for sock, name in self._sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()
            path = self._addresses[name].unix_path
            if path is not None:
                _unlink(path)
        self._sockets = []
        self._sweep_handle.cancel()
        self.handshakes.close()
        for held, handle in self._held.items():
            handle.cancel()
            held.close()
        self._held = {}

    async def close(self) -> None:
        """Stop accepting; let what was asked be answered, at most `logflume.shutdown.timeout.ms`; close everything."""
        self.stop_accepting()
        drained = self._loop.create_future()
        self._on_drained = lambda: None if drained.done() else drained.set_result(None)
        self._handlers.answer_all()
        for connection in list(self._connections.values()):
            connection.drain()
        if self._connections:
            await asyncio.wait([drained], timeout=self._config.number("logflume.shutdown.timeout.ms") / 1000)
        self._handlers.complaints.settle(_log)
        if self._connections:
            _log.warning("%d connections had requests that were not answered in time", len(self._connections))
        for connection in list(self._connections.values()):
            connection.close("the broker is stopping")


@dataclass(frozen=True, slots=True)
class _Guest:
    """Who is being let in."""

    host: str
    port: int
    listener: str
    guard: Guard


def _bind(address: Address, *, backlog: int) -> socket.socket:
    path = address.unix_path
    try:
        if path is not None:
            _unlink(path)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            os.fchmod(sock.fileno(), 0o600)  # before it has a name: nobody else can connect, not even for a moment
            sock.bind(path)
            os.chmod(path, 0o600)
        else:
            sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address.host, address.port))
        sock.listen(backlog)
    except OSError as error:
        raise TransportError(f"cannot listen on {address}: {error.strerror or error}; choose another address or port") from error
    return sock


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
