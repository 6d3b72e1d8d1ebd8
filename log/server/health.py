"""The broker's own HTTP port: `/metrics`, `/healthz`, `/readyz`. A small answer to GET, one request a connection; nothing else.

On a loopback address everybody sees everything. Elsewhere it speaks HTTPS and asks for a user (`page_users.py`), for pages tell
names of topics and groups; a probe without one hears whether the broker is alive and ready, and no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from logflume.log.errors import TransportError
from logflume.log.http_login import Verdict

from .addresses import Address
from .page_users import PageUsers, server_context
from .tls import ListenerTls

MAX_REQUEST_BYTES = 8 * 1024
REQUEST_TIMEOUT_S = 5.0
MAX_CONNECTIONS = 64
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
_log = logging.getLogger("logflume.server")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a page says."""

    body: bytes
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """What is told on a path: to whom may see everything, and to a probe; without `brief` a probe is asked for a user."""

    full: Callable[[], Answer | Awaitable[Answer]]
    brief: Callable[[], Answer] | None = None


def alive() -> Answer:
    return Answer(b"ok\n")


def brief(answer: Answer) -> Answer:
    """Return what a probe is told of a readiness: whether, and not why not."""
    return answer if answer.status == 200 else Answer(b"not ready\n", answer.status)


class HealthServer:
    """Serves pages by path on the broker's loop, so that pages may read its state. Made by `start`, ended by `close`."""

    def __init__(self, pages: Mapping[str, Page], *, tls: ListenerTls | None = None, users: PageUsers | None = None) -> None:
        """`users`: who may see what; None: everybody everything."""
        self._pages, self._tls, self._users = pages, tls, users
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, address: Address) -> Address:
        """Listen; return the address with the port that was bound. Raises TransportError."""
        if not address.is_loopback and self._users is None:
            _log.warning("/metrics is served on %s to everybody, and not encrypted; set ssl.keystore.location", address)
        context = None if self._tls is None else server_context(self._tls)
        try:
            self._server = await asyncio.start_server(
                self._serve, address.host or None, address.port, limit=MAX_REQUEST_BYTES, ssl=context, backlog=MAX_CONNECTIONS
            )
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
                    host = str((writer.get_extra_info("peername") or ("",))[0])
                    writer.write(_written(head, await self._answer(head, host)))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # a client that is slow, gone or sends no request: nobody to tell
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, head: bytes, host: str) -> Answer:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return Answer(b"expected an HTTP/1.1 request\n", 400)
        method, target, _ = parts
        if method not in ("GET", "HEAD"):
            return Answer(b"expected GET\n", 405)
        page = self._pages.get(target.partition("?")[0])
        if page is None:
            return Answer(f"expected one of {', '.join(self._pages)}\n".encode(), 404)
        show: Callable[[], Answer | Awaitable[Answer]] = page.full
        if self._users is not None:
            authorization = _header(head, "authorization")
            if page.brief is not None and not authorization:
                show = page.brief
            elif (verdict := await self._users.judge(authorization, host)) is Verdict.UNKNOWN:
                return Answer(b"expected the name and password of a user, by basic authentication\n", 401)
            elif verdict is Verdict.FORBIDDEN:
                return Answer(b"this takes the right to describe the cluster\n", 403)
            elif verdict is not Verdict.WELCOME:
                return Answer(b"it cannot be said now who this is; ask again\n", 503)
        try:
            answer = show()
            return answer if isinstance(answer, Answer) else await answer
        except Exception:  # the boundary: a fault in a page must not take the broker down  # noqa: BLE001
            _log.exception("cannot answer %s", target[:100])
            return Answer(b"this page failed; the broker's log has the cause\n", 503)


def _header(head: bytes, name: str) -> str:
    """Return the value of a header, "" without."""
    for line in head.decode("latin-1").split("\r\n")[1:]:
        found, colon, value = line.partition(":")
        if colon and found.strip().lower() == name:
            return value.strip()
    return ""


def _written(head: bytes, answer: Answer) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        *(['WWW-Authenticate: Basic realm="logflume", charset="UTF-8"'] if answer.status == 401 else []),
        "Connection: close",
    ]
    body = b"" if head.startswith(b"HEAD ") else answer.body
    return "\r\n".join([*lines, "", ""]).encode() + body
