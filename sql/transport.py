"""HTTP to a SQL server with what Python brings: answers whole or line by line, connections kept for the next request.

An idle connection on which something has arrived (mostly its end) is not used again, so a request is never sent twice.
"""

from __future__ import annotations

import contextlib
import http.client
import selectors
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from logflume.log import InvalidInput, TransportError

CONNECT_TIMEOUT_S, TIMEOUT_S = 5.0, 120.0
_IDLE_MAX = 4


class Answer:
    """What a server says to one request. It holds its connection until it is read to its end or closed."""

    def __init__(self, transport: Transport, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._transport, self._connection, self._response = transport, connection, response
        self.status, self.reason = response.status, response.reason
        self._is_closed = False

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def read(self) -> bytes:
        """Return the whole body. Raises TransportError."""
        try:
            with self._transport.told():
                return self._response.read()
        finally:
            self.close()

    def lines(self) -> Iterator[bytes]:
        """Yield the body line by line, as they come, without their ends. Raises TransportError, also where it is cut off."""
        rest = bytearray()
        try:
            for part in self._parts():
                *ended, begun = part.split(b"\n")
                for each in ended:
                    rest += each
                    if line := bytes(rest.rstrip(b"\r")):
                        yield line
                    rest.clear()
                rest += begun
            if rest:
                yield bytes(rest)
        finally:
            self.close()

    def _parts(self) -> Iterator[bytes]:
        """Yield the body as it comes; not by the response's own lines, which take an end that comes early for the end."""
        with self._transport.told():
            if self._response.length is not None:
                yield self._response.read()
                return
            while part := self._response.read1():
                yield part

    def close(self) -> None:
        """Give the connection back, once; end it where there is more to read."""
        if self._is_closed:
            return
        self._is_closed = True
        self._transport.give_back(self._connection, is_idle=self._response.isclosed() and not self._response.will_close)


class Transport:
    """Connections with one server; for any threads. `authorization`: the header, if the server asks for one."""

    def __init__(self, address: str, *, authorization: str | None = None, ca: Path | None = None) -> None:
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or parts.scheme not in ("http", "https"):
            shown = address.rpartition("@")[2]  # before it may stand a password
            raise InvalidInput(f"{shown} is no address of a SQL server, such as http://127.0.0.1:8088")
        self._host, self._port = host, port if port is not None else {"http": 80, "https": 443}[parts.scheme]
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._path = parts.path.rstrip("/")
        self._tls = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None
        self._headers = {} if authorization is None else {"Authorization": authorization}
        self._idle: deque[http.client.HTTPConnection] = deque(maxlen=_IDLE_MAX)
        self._used: dict[http.client.HTTPConnection, socket.socket] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def close(self) -> None:
        """End all connections, also those on which somebody still waits for an answer: who does gets a TransportError."""
        with self._lock:
            self._is_closed = True
            idle, used = list(self._idle), list(self._used.values())
            self._idle.clear()
        for connection in idle:
            connection.close()
        for sock in used:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # that of an SSLSocket takes its state from under who reads

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str],
        timeout_s: float | None = TIMEOUT_S,
    ) -> Answer:
        """Send a request; return the answer when it begins. `timeout_s`: how long nothing may come, None: for ever.

        Raises:
            TransportError: there is no answer, or `close` was called.
        """
        with self.told():
            connection = self._connection()
            try:
                assert connection.sock is not None
                with self._lock:
                    if self._is_closed:
                        raise TransportError(f"the client of {self.address} is closed")
                    self._used[connection] = connection.sock
                connection.sock.settimeout(TIMEOUT_S)
                connection.request(method, self._path + path, body, {**self._headers, **headers})
                connection.sock.settimeout(timeout_s)
                return Answer(self, connection, connection.getresponse())
            except BaseException:
                self.give_back(connection, is_idle=False)
                raise

    def give_back(self, connection: http.client.HTTPConnection, *, is_idle: bool) -> None:
        """Keep a connection for the next request, or end it."""
        with self._lock:
            self._used.pop(connection, None)
            is_kept = is_idle and not self._is_closed and connection.sock is not None and len(self._idle) < _IDLE_MAX
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            connection.close()

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Raise what goes wrong on the way as TransportError."""
        try:
            yield
        except http.client.IncompleteRead as error:
            raise TransportError(f"the answer of the SQL server at {self.address} was cut off") from error
        except (OSError, http.client.HTTPException) as error:
            cause = str(error) or type(error).__name__
            raise TransportError(f"no SQL server answers at {self.address}: {cause}; is it running?") from error

    def _connection(self) -> http.client.HTTPConnection:
        while self._idle:
            try:
                found = self._idle.pop()
            except IndexError:
                break
            if found.sock is not None and not _has_input(found.sock):
                return found
            found.close()
        made = (
            http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
            if self._tls is None
            else http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S, context=self._tls)
        )
        made.connect()
        return made


def _has_input(sock: socket.socket) -> bool:
    """Tell whether something has arrived; for any number of descriptors, unlike select()."""
    with selectors.DefaultSelector() as ready:
        ready.register(sock, selectors.EVENT_READ)
        return bool(ready.select(0))
