"""The small HTTP port of an instance: what it is doing, its metrics, and reads of the stores that it holds.

GET /status (JSON), GET /metrics (Prometheus), POST /read (`reads.Ask` to `reads.Answer`, MessagePack). It tells what stores hold:
on addresses that others reach it speaks HTTPS and asks for a user of the log (`PageDoor`), who may DESCRIBE the application's
group to see what it does, and READ it to read its stores. One request a connection, bounded in size and time.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from logflume.log import InvalidInput, StorageError
from logflume.log.http_login import Verdict
from logflume.log.page_door import PageDoor

_log = logging.getLogger("logflume.streams")
_THREADS = 16
_WAITING_MAX = 64
_BODY_MAX_BYTES = 1 << 20
_TIMEOUT_S = 5.0
_CONNECTION_S = 20.0
"""A connection that is older is cut, however it dribbles; a login at the broker may take some seconds of it."""
_RIGHTS = {"GET": "describe", "POST": "read"}
_REFUSALS = {
    Verdict.UNKNOWN: "expected the login of a user of the log: name and password, or a token, or the application's certificate",
    Verdict.FORBIDDEN: "this takes a right to the application's group: DESCRIBE to see what it does, READ to read its stores",
    Verdict.BUSY: "the log cannot be asked who this is; ask again",
}

HTTPS = "https://"
Page = Callable[[bytes], tuple[str, bytes]]
"""Takes a request's body (empty for GET) and returns (content type, body)."""


class Endpoint:
    """Serves pages by (method, path) until `close`. `address` is where others reach it, "https://" before it behind a door."""

    def __init__(self, where: str, pages: Mapping[tuple[str, str], Page], *, door: PageDoor | None = None) -> None:
        """Listen on "host:port" (port 0: any free one). `door`: who may see what; None: everybody everything.

        Raises:
            InvalidInput: no such address. StorageError: the port is taken.
        """
        host, port = parse_endpoint(where)
        try:
            self._server = _Server((host, port), pages, door)
        except OSError as error:
            raise StorageError(f"cannot listen on {where}: {error.strerror or error}; choose another endpoint") from error
        reached = socket.gethostname() if host in ("", "0.0.0.0") else host
        self.address = f"{'' if door is None else HTTPS}{reached}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="streams-endpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer what is under way, then stop. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def parse_endpoint(where: str) -> tuple[str, int]:
    """Return host and port. Raises InvalidInput."""
    host, colon, port = where.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise InvalidInput(f"endpoint must be host:port (port 0 for any free one), found {where!r}")
    return host, int(port)


class _Server(HTTPServer):
    """Answers in a few threads; connections beyond a bound are closed at once."""

    allow_reuse_address = True
    request_queue_size = _WAITING_MAX

    def __init__(self, address: tuple[str, int], pages: Mapping[tuple[str, str], Page], door: PageDoor | None) -> None:
        super().__init__(address, _Handler)
        self.pages, self.door = pages, door
        self._begun_s: dict[socket.socket, float] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="streams-endpoint")
        self._room = threading.BoundedSemaphore(_WAITING_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._pool.submit(self._answer, request, client_address)

    def _answer(self, request: socket.socket, client_address: Any) -> None:
        self._begun_s[request] = time.monotonic()
        sock = request
        try:
            if self.door is not None:
                request.settimeout(_TIMEOUT_S)
                sock = self.door.context.wrap_socket(request, server_side=True)
                self._begun_s[sock] = self._begun_s.pop(request)
            self.finish_request(sock, client_address)
        except OSError:
            return  # a client that is slow or gone, or speaks no TLS: nobody to tell
        finally:
            self._begun_s.pop(sock, None)
            self.shutdown_request(sock)
            self._room.release()

    def service_actions(self) -> None:
        """Called again and again while it serves: cut what takes too long."""
        now_s = time.monotonic()
        for sock in [sock for sock, begun_s in list(self._begun_s.items()) if now_s - begun_s > _CONNECTION_S]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def server_close(self) -> None:
        super().server_close()
        self._pool.shutdown(wait=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        if self._is_let_in():
            self._respond(b"")

    def do_POST(self) -> None:
        if not self._is_let_in():
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _BODY_MAX_BYTES:
            self.send_error(413, f"expected a body of at most {_BODY_MAX_BYTES} bytes")
            return
        self._respond(self.rfile.read(int(length)))

    def _is_let_in(self) -> bool:
        """Whether the sender may see pages of this method; else he has been told."""
        if self.server.door is None:
            return True
        certificate = self.connection.getpeercert(binary_form=True) if isinstance(self.connection, ssl.SSLSocket) else None
        authorization = self.headers.get("Authorization", "")
        verdict = self.server.door.judge(authorization, certificate, _RIGHTS[self.command])
        if verdict is not Verdict.WELCOME:
            self.send_error(verdict.value, _REFUSALS[verdict])
        return verdict is Verdict.WELCOME

    def _respond(self, body: bytes) -> None:
        page = self.server.pages.get((self.command, self.path.partition("?")[0]))
        if page is None:
            self.send_error(404, "expected one of " + ", ".join(" ".join(each) for each in self.server.pages))
            return
        try:
            kind, content = page(body)
        except InvalidInput as error:
            self.send_error(400, str(error)[:200])
            return
        except Exception:  # the boundary: a fault in a page must not end the thread  # noqa: BLE001
            _log.exception("cannot answer %s", self.path[:100])
            self.send_error(503, "this page failed; the application's log has the cause")
            return
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)
