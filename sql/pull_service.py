"""Pull queries between processes of one machine: a process that runs queries answers for the state that it holds.

It serves over HTTP on a Unix socket that only its own user can reach (`places.socket_stem`): whoever can ask there owns the data,
so nobody learns what ACLs keep from him, no browser gets there, and no address has to be believed. Bodies are MessagePack.
POST /rows takes a `TableRead` and gives a `TablePage`, or 4xx {error}. GET /status -> what each running query is doing;
GET /connectors -> how those are that run here.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from logflume.log import LogflumeError
from logflume.log.interfaces import Log

from .places import Role, socket_stem
from .table_state import TablePage, TableRead
from .workers import reachable

_decode_read = msgspec.msgpack.Decoder(TableRead).decode

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from .engine import SqlEngine

BODY_BYTES_MAX = 4 << 20
_log = logging.getLogger("logflume.sql")


class PullService:
    """Serves the state of an engine until closed. Context manager.

    `role`: a WORKER is there to run queries; a GUEST runs them while no worker does, and gives them up to the first that comes; a
    DRIVER has no state to give, but says how its queries are.
    """

    def __init__(self, engine: SqlEngine, log: Log, *, role: Role = Role.WORKER) -> None:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.routing import Route

        self._engine = engine
        routes = [
            Route("/rows", self._rows, methods=["POST"]),
            Route("/status", self._status),
            Route("/connectors", self._connectors),
        ]
        stem = socket_stem(log, engine.service, role)
        stem.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        reachable(stem)  # what workers that are gone have left is removed
        self.path = Path(f"{stem}-{os.getpid()}.sock")
        self._socket = _listen(self.path)
        config = uvicorn.Config(
            Starlette(routes=routes), log_level="error", lifespan="off", access_log=False, timeout_keep_alive=60
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="pull-service", daemon=True)

    def __enter__(self) -> PullService:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.path.unlink(missing_ok=True)
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    async def _rows(self, request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool

        body = b""
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES_MAX:
                return _packed({"error": f"a request holds at most {BODY_BYTES_MAX} bytes"}, 413)
        try:
            read = _decode_read(body)
        except (ValueError, RecursionError) as error:
            return _packed({"error": f"expected a read of a table's state as MessagePack: {error}"}, 400)
        try:
            page = await run_in_threadpool(self._engine.holders.read_state, read)
        except LogflumeError as error:
            return _packed({"error": str(error)}, 409)
        rows = [[plain(value) for value in row] for row in page.rows]
        return _packed(TablePage(page.partitions, rows, page.after), 200)

    async def _connectors(self, request: Request) -> Response:
        return _packed(self._engine.holders.local_connectors(), 200)

    async def _status(self, request: Request) -> Response:
        return _packed(self._engine.holders.local_status(), 200)


def _packed(content: Any, status: int) -> Response:
    from starlette.responses import Response

    return Response(msgspec.msgpack.encode(content), status, media_type="application/msgpack")


def plain(value: Any) -> Any:
    """Return a value as MessagePack can hold it: a DECIMAL as {"decimal": text}, a MAP or STRUCT as {"map": pairs}."""
    match value:
        case Decimal():
            return {"decimal": str(value)}
        case list() | tuple():
            return [plain(item) for item in value]
        case dict():
            return {"map": [[plain(k), plain(v)] for k, v in value.items()]}
    return value


def rich(value: Any) -> Any:
    """Return the value that `plain` was given.

    >>> rich(plain({"a": [Decimal("1.50"), b"x", float("inf")]}))
    {'a': [Decimal('1.50'), b'x', inf]}
    """
    match value:
        case {"decimal": text}:
            return Decimal(text)
        case {"map": items}:
            return {rich(k): rich(v) for k, v in items}
        case list():
            return [rich(item) for item in value]
    return value


def _listen(path: Path) -> socket.socket:
    """Listen on a Unix socket that only this user can reach, from its first moment on."""
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(str(path))
        path.chmod(0o600)
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise LogflumeError(f"cannot listen on {path} for pull queries: {error.strerror or error}") from error
    return sock
