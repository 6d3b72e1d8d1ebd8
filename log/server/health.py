"""The broker's own HTTP port: `/metrics`, `/healthz`, `/readyz`. A small answer to GET, one request a connection; nothing else.

It has no authentication and tells names of topics and groups, so it belongs on a loopback address; others are warned of.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from logflume.log.errors import TransportError

from .addresses import Address

MAX_REQUEST_BYTES = 8 * 1024
REQUEST_TIMEOUT_S = 5.0
MAX_CONNECTIONS = 64
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_log = logging.getLogger("logflume.server")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page says."""

    body: bytes
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


class HealthServer:
    """Serves pages by path on the broker's loop, so that pages may read its state. Made by `start`, ended by `close`."""

    def __init__(self, pages: Mapping[str, Callable[[], Answer]]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, address: Address) -> Address:
        """Listen; return the address with the port that was bound. Raises TransportError."""
        if not address.is_loopback:
            _log.warning(
                "/metrics is served on %s without authentication; use a loopback address if others can reach it", address
            )
        try:
            self._server = await asyncio.start_server(self._serve, address.host or None, address.port, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            raise TransportError(
                f"cannot serve /metrics on {address}: {error.strerror or error}; choose another logflume.http.listener"
            ) from error
        return Address(address.host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MAX_CONNECTIONS:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._respond(head))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # a client that is slow, gone or sends no request: nobody to tell
        finally:
            self._open -= 1
            writer.close()

    def _respond(self, head: bytes) -> bytes:
        answer = self._answer(head)
        lines = [
            f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            "Connection: close",
        ]
        body = b"" if head.startswith(b"HEAD ") else answer.body
        return "\r\n".join([*lines, "", ""]).encode() + body

    def _answer(self, head: bytes) -> Answer:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return Answer(b"expected an HTTP/1.1 request\n", 400)
        method, target, _ = parts
        if method not in ("GET", "HEAD"):
            return Answer(b"expected GET\n", 405)
        page = self._pages.get(target.partition("?")[0])
        if page is None:
            return Answer(f"expected one of {', '.join(self._pages)}\n".encode(), 404)
        try:
            return page()
        except Exception:  # the boundary: a fault in a page must not take the broker down  # noqa: BLE001
            _log.exception("cannot answer %s", target[:100])
            return Answer(b"this page failed; the broker's log has the cause\n", 503)
