"""Listens on TCP and Unix sockets, makes connections, keeps their number and their idle time bounded."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import socket
from collections.abc import Callable

from logflume.log.broker.access import OWNER
from logflume.log.broker.handlers import Handlers
from logflume.log.broker.seams import ANONYMOUS
from logflume.log.errors import TransportError

from .addresses import WILDCARDS, Address
from .connection import Connection

BACKLOG = 1024
SWEEP_INTERVAL_S = 5.0
STALLED_AFTER_S = 60.0
"""A client that takes nothing of what it was sent for so long is cut off."""
_log = logging.getLogger("logflume.server")


class Listener:
    """The listening sockets and all connections of a broker, on the loop's thread.

    Invariant: `_connections` holds every open connection by its id.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, handlers: Handlers, addresses: dict[str, Address]) -> None:
        """`addresses`: listener name -> address told to clients; this fills it in."""
        self._loop, self._handlers, self._addresses = loop, handlers, addresses
        self._sockets: list[tuple[socket.socket, str]] = []
        self._connections: dict[int, Connection] = {}
        self._ids = itertools.count(1)
        self._sweep_handle = loop.call_later(self._sweep_interval_s(), self._sweep)
        self._on_drained: Callable[[], None] | None = None

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def listen(self, name: str, address: Address, *, advertised: Address | None = None) -> Address:
        """Bind and listen; return the address with the port that was bound. Raises TransportError."""
        sock = _bind(address)
        sock.setblocking(False)
        bound = address if address.unix_path is not None else Address(address.host, sock.getsockname()[1])
        self._addresses[name] = advertised or bound
        is_per_interface = advertised is None and address.host in WILDCARDS
        self._sockets.append((sock, name))
        self._loop.add_reader(sock.fileno(), self._accept, sock, name, is_per_interface)
        return bound

    def _accept(self, listening: socket.socket, name: str, is_per_interface: bool) -> None:
        """Accept what is waiting, up to a bound per turn."""
        for _ in range(64):
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    _log.error("cannot accept a connection: %s; raise the limit of open files (ulimit -n)", error.strerror)
                    self._pause(listening, name, is_per_interface)
                return
            if len(self._connections) >= self._handlers.core.config.number("max.connections"):
                _log.warning("refused a connection: max.connections are open")
                sock.close()
                continue
            sock.setblocking(False)
            own_name = name
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if is_per_interface:
                    own_name = self._interface(name, sock)
            host = peer[0] if sock.family != socket.AF_UNIX else "unix"
            connection_id = next(self._ids)
            self._connections[connection_id] = Connection(
                sock,
                self._loop,
                self._handlers,
                connection_id=connection_id,
                host=host,
                listener=own_name,
                on_close=self._closed,
                principal=OWNER if sock.family == socket.AF_UNIX else ANONYMOUS,
            )

    def _interface(self, name: str, sock: socket.socket) -> str:
        """Return a listener name whose address is the local one that this client reached, for listeners on all interfaces."""
        host, port = sock.getsockname()[:2]
        own_name = f"{name}@{host}"
        self._addresses.setdefault(own_name, Address(host, port))
        return own_name

    def _pause(self, listening: socket.socket, name: str, is_per_interface: bool) -> None:
        """Stop accepting for a second: without descriptors the socket would stay readable and spin."""
        fd = listening.fileno()
        self._loop.remove_reader(fd)

        def resume() -> None:
            if listening.fileno() == fd:
                self._loop.add_reader(fd, self._accept, listening, name, is_per_interface)

        self._loop.call_later(1.0, resume)

    def _closed(self, connection: Connection) -> None:
        self._connections.pop(connection.connection_id, None)
        if not self._connections and self._on_drained is not None:
            self._on_drained()

    def _sweep(self) -> None:
        """Close connections that did nothing for too long."""
        self._sweep_handle = self._loop.call_later(self._sweep_interval_s(), self._sweep)
        now_s = self._loop.time()
        idle_s = self._handlers.core.config.number("connections.max.idle.ms") / 1000
        for connection in list(self._connections.values()):
            quiet_s = now_s - connection.active_s
            if connection.is_idle and quiet_s > idle_s:
                connection.close("idle for connections.max.idle.ms")
            elif connection.is_stalled and quiet_s > STALLED_AFTER_S:
                connection.close("the client does not read its responses", level=logging.WARNING)

    def _sweep_interval_s(self) -> float:
        return min(SWEEP_INTERVAL_S, self._handlers.core.config.number("connections.max.idle.ms") / 1000)

    def stop_accepting(self) -> None:
        for sock, name in self._sockets:
            self._loop.remove_reader(sock.fileno())
            sock.close()
            path = self._addresses[name].unix_path
            if path is not None:
                _unlink(path)
        self._sockets = []
        self._sweep_handle.cancel()

    async def close(self, *, grace_s: float = 2.0) -> None:
        """Stop accepting; let what was asked be answered, at most `grace_s`; close everything."""
        self.stop_accepting()
        drained = self._loop.create_future()
        self._on_drained = lambda: None if drained.done() else drained.set_result(None)
        self._handlers.fetch.answer_all()
        for connection in list(self._connections.values()):
            connection.drain()
        if self._connections:
            await asyncio.wait([drained], timeout=grace_s)
        for connection in list(self._connections.values()):
            connection.close("the broker is stopping")


def _bind(address: Address) -> socket.socket:
    path = address.unix_path
    try:
        if path is not None:
            _unlink(path)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.bind(path)
            os.chmod(path, 0o600)
        else:
            sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address.host, address.port))
        sock.listen(BACKLOG)
    except OSError as error:
        raise TransportError(f"cannot listen on {address}: {error.strerror or error}; choose another address or port") from error
    return sock


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
