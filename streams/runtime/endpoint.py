"""The small HTTP port of an instance: what it is doing, its metrics, and reads of the stores that it holds.

GET /status (JSON), GET /metrics (Prometheus), POST /read (`reads.Ask` to `reads.Answer`, MessagePack). It has no authentication
and tells what stores hold, so it belongs on a loopback address; others are warned of. One request a connection, bounded in size
and time.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from logflume.log import InvalidInput, StorageError

_log = logging.getLogger("logflume.streams")
_THREADS = 4
_WAITING_MAX = 64
_BODY_MAX_BYTES = 1 << 20
_TIMEOUT_S = 5.0

Page = Callable[[bytes], tuple[str, bytes]]
"""Takes a request's body (empty for GET) and returns (content type, body)."""


class Endpoint:
    """Serves pages by (method, path) until `close`. `address` is where others reach it."""

    def __init__(self, where: str, pages: Mapping[tuple[str, str], Page]) -> None:
        """Listen on "host:port" (port 0: any free one).

        Raises:
            InvalidInput: no such address. StorageError: the port is taken.
        """
        host, port = _parsed(where)
        try:
            self._server = _Server((host, port), pages)
        except OSError as error:
            raise StorageError(f"cannot listen on {where}: {error.strerror or error}; choose another endpoint") from error
        is_any = host in ("", "0.0.0.0")
        if is_any or not host.startswith(("127.", "localhost")):
            _log.warning("stores can be read on %s without authentication; use a loopback address if others can reach it", where)
        self.address = f"{socket.gethostname() if is_any else host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="streams-endpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer what is under way, then stop. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _parsed(where: str) -> tuple[str, int]:
    host, colon, port = where.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise InvalidInput(f"endpoint must be host:port (port 0 for any free one), found {where!r}")
    return host, int(port)


class _Server(HTTPServer):
    """Answers in a few threads; connections beyond a bound are closed at once."""

    allow_reuse_address = True
    request_queue_size = _WAITING_MAX

    def __init__(self, address: tuple[str, int], pages: Mapping[tuple[str, str], Page]) -> None:
        super().__init__(address, _Handler)
        self.pages = pages
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="streams-endpoint")
        self._room = threading.BoundedSemaphore(_WAITING_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._pool.submit(self._answer, request, client_address)

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            return  # a client that is slow or gone: nobody to tell
        finally:
            self.shutdown_request(request)
            self._room.release()

    def server_close(self) -> None:
        super().server_close()
        self._pool.shutdown(wait=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        self._respond(b"")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _BODY_MAX_BYTES:
            self.send_error(413, f"expected a body of at most {_BODY_MAX_BYTES} bytes")
            return
        self._respond(self.rfile.read(int(length)))

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
