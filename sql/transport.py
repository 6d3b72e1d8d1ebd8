"""HTTP to a SQL server with what Python brings: answers whole or line by line, connections kept for the next request.

An idle connection on which something has arrived (mostly its end) is not used again, so a request is never sent twice.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import ssl
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
        with self._transport.told():
            body = self._response.read()
        self.close()
        return body

    def lines(self) -> Iterator[bytes]:
        """Yield the body line by line, as they come, without their ends. Raises TransportError."""
        with self._transport.told():
            for line in self._response:
                if line := line.rstrip(b"\r\n"):
                    yield line
        self.close()

    def close(self) -> None:
        """Give the connection back, once; end it where there is more to read."""
        if self._is_closed:
            return
        self._is_closed = True
        self._transport.give_back(self._connection, is_idle=self._response.isclosed() and not self._response.will_close)


class Transport:
    """Connections with one server; for any threads. `authorization`: the header, if the server asks for one."""

    def __init__(self, address: str, *, authorization: str | None = None, ca: Path | None = None) -> None:
        parts = urlsplit(address)
        try:
            self._host, self._port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidInput(f"{address} is no address of a SQL server, such as http://127.0.0.1:8088: {error}") from None
        if parts.scheme not in ("http", "https") or not self._host:
            raise InvalidInput(f"{address} is no address of a SQL server, such as http://127.0.0.1:8088")
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._path = parts.path.rstrip("/")
        self._tls = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None
        self._headers = {} if authorization is None else {"Authorization": authorization}
        self._idle: deque[http.client.HTTPConnection] = deque(maxlen=_IDLE_MAX)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

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
            TransportError: there is no answer.
        """
        with self.told():
            connection = self._connection()
            try:
                assert connection.sock is not None
                connection.sock.settimeout(TIMEOUT_S)
                connection.request(method, self._path + path, body, {**self._headers, **headers})
                connection.sock.settimeout(timeout_s)
                return Answer(self, connection, connection.getresponse())
            except BaseException:
                connection.close()
                raise

    def give_back(self, connection: http.client.HTTPConnection, *, is_idle: bool) -> None:
        """Keep a connection for the next request, or end it."""
        if is_idle and connection.sock is not None and len(self._idle) < _IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Raise what goes wrong on the way as TransportError."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            cause = error or type(error).__name__
            raise TransportError(f"no SQL server answers at {self.address}: {cause}; is it running?") from error

    def _connection(self) -> http.client.HTTPConnection:
        while self._idle:
            try:
                found = self._idle.pop()
            except IndexError:
                break
            if found.sock is not None and not select.select([found.sock], [], [], 0)[0]:
                return found
            found.close()
        assert self._host is not None
        made = (
            http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
            if self._tls is None
            else http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S, context=self._tls)
        )
        made.connect()
        return made
