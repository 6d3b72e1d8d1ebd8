"""Pull queries between processes of one machine: the process that holds a query's state answers for those that do not.

A worker serves them over HTTP on a Unix socket that only its own user can reach (`places.socket_stem`): whoever can ask there
owns the data, so nobody learns what ACLs keep from him, no browser gets there, and no address has to be believed. One request is
one statement: POST /pull {sql, properties} -> {title, columns: [{name, type}], rows, note}, or 4xx {error}. GET /status -> what
each running query is doing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from logflume.log import LogflumeError
from logflume.log.interfaces import Log
from logflume.log.schemas import Column
from logflume.streams.runtime import EngineStatus

from .places import socket_stem
from .results import Rows

if TYPE_CHECKING:
    import httpx
    from starlette.requests import Request
    from starlette.responses import JSONResponse

    from .engine import SqlEngine

BODY_BYTES_MAX = 1 << 20
ASK_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 1.0
_log = logging.getLogger("logflume.sql")


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request."""

    sql: str
    properties: dict[str, str] = {}


class Answer(msgspec.Struct, frozen=True):
    """The body of an answer; `rows` hold values as `plain` gives them."""

    title: str
    columns: tuple[Column, ...]
    rows: list[list[Any]]
    note: str = ""


class PullService:
    """Serves pull queries of an engine until closed. Context manager."""

    def __init__(self, engine: SqlEngine, log: Log) -> None:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.routing import Route

        self._engine = engine
        routes = [Route("/pull", self._pull, methods=["POST"]), Route("/status", self._status)]
        stem = socket_stem(log, engine.service)
        stem.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in _reachable(stem):
            pass  # what workers that are gone have left is removed
        self.path = Path(f"{stem}-{os.getpid()}.sock")
        self._socket = _listen(self.path)
        config = uvicorn.Config(Starlette(routes=routes), log_level="error", lifespan="off")
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

    async def _pull(self, request: Request) -> JSONResponse:
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse

        body = b""
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES_MAX:
                return JSONResponse({"error": f"a request holds at most {BODY_BYTES_MAX} bytes"}, 413)
        try:
            asked = msgspec.json.decode(body, type=Asked)
        except (ValueError, RecursionError) as error:
            return JSONResponse({"error": f'expected a JSON object {{"sql": text, "properties": object}}: {error}'}, 400)
        try:
            rows = await run_in_threadpool(self._answer, asked)
        except LogflumeError as error:
            return JSONResponse({"error": str(error)}, 400)
        except RecursionError:
            return JSONResponse({"error": "the statement is nested too deeply"}, 400)
        return JSONResponse(rows)

    async def _status(self, request: Request) -> JSONResponse:
        from starlette.responses import JSONResponse

        return JSONResponse(msgspec.to_builtins(self._engine.status()))

    def _answer(self, asked: Asked) -> Any:
        result = self._engine.pull(asked.sql, asked.properties)
        rows = [[plain(value) for value in row] for row in result.rows]
        return msgspec.to_builtins(Answer(result.title, tuple(result.columns), rows, result.note))


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: a DECIMAL as {"decimal": text}, BYTES as {"bytes": hex}."""
    match value:
        case Decimal():
            return {"decimal": str(value)}
        case bytes():
            return {"bytes": value.hex()}
        case list():
            return [plain(item) for item in value]
        case dict():
            return {"map": [[plain(k), plain(v)] for k, v in value.items()]}
    return value


def rich(value: Any) -> Any:
    """Return the value that `plain` was given.

    >>> rich(plain({"a": [Decimal("1.50"), b"x"]}))
    {'a': [Decimal('1.50'), b'x']}
    """
    match value:
        case {"decimal": text}:
            return Decimal(text)
        case {"bytes": text}:
            return bytes.fromhex(text)
        case {"map": items}:
            return {rich(k): rich(v) for k, v in items}
        case list():
            return [rich(item) for item in value]
    return value


def has_worker(log: Log, service: str) -> bool:
    """Return whether a worker that runs the persistent queries of a service is up on this machine."""
    return any(True for _ in _reachable(socket_stem(log, service)))


def ask_status(log: Log, service: str) -> dict[str, EngineStatus]:
    """Return what the workers' queries are doing, by query id; the figures of the first worker that answers."""
    for answer in _answers(log, service, "GET", "/status", 5.0, None):
        return msgspec.convert(answer.json(), dict[str, EngineStatus])
    return {}


def ask(log: Log, service: str, sql: str, properties: Mapping[str, str]) -> Rows | None:
    """Let a worker answer a pull query; None when none is there that does."""
    asked = {"sql": sql, "properties": dict(properties)}
    for answer in _answers(log, service, "POST", "/pull", ASK_TIMEOUT_S, asked):
        found = msgspec.json.decode(answer.content, type=Answer)
        rows = tuple(tuple(rich(value) for value in row) for row in found.rows)
        return Rows(found.title, found.columns, rows, found.note)
    return None


def _answers(
    log: Log, service: str, method: str, path: str, timeout_s: float, body: dict[str, Any] | None
) -> Iterator[httpx.Response]:
    """Yield the answers (status 200) of the workers, one after the other."""
    import httpx

    for found in _reachable(socket_stem(log, service)):
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(found)), timeout=timeout) as client:
            try:
                answer = client.request(method, f"http://worker{path}", json=body)
            except httpx.HTTPError:
                continue
        if answer.status_code == 200:
            yield answer


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


def _reachable(stem: Path) -> Iterator[Path]:
    """Yield the sockets on which a worker of this user listens, the newest first; remove those of workers that are gone."""
    found: list[tuple[int, Path]] = []
    for path in stem.parent.glob(f"{stem.name}-*.sock"):
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid():
                found.append((status.st_mtime_ns, path))
    for _, path in sorted(found, reverse=True):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(CONNECT_TIMEOUT_S)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
                continue
            except OSError:
                continue
        yield path
