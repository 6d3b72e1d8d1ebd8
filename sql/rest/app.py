"""The routes of the SQL server: what each endpoint takes and gives (ksqlDB's REST interface)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from logflume.log import InvalidInput, LogflumeError
from logflume.log.registry import EVERYTHING, Fault, RegistryError, Rights, Users
from logflume.sql.engine import SqlEngine
from logflume.sql.first_read import LIMIT_S
from logflume.sql.properties import is_known
from logflume.sql.render import to_json
from logflume.sql.session import Session

from . import console
from .accepted import accepted
from .errors import (
    BAD_REQUEST,
    COMMAND_AWAITED,
    FORBIDDEN,
    NOT_ACCEPTABLE,
    NOT_AUTHENTICATED,
    NOT_FOUND,
    NOT_READY,
    SHUTTING_DOWN,
    TERMINATED,
    RestError,
    as_rest_error,
)
from .forms import MEDIA_TYPES, Chunked, Delimited, Form, Kind, Protobuf
from .inserts import acknowledged
from .pipelining import in_turn, let_next
from .queries import Queries, whole, written
from .reading import Reading
from .requests import RIGHTS, CloseRequest, KsqlRequest, StreamRequest, TerminateRequest, body_of, decoded, session_of
from .statements import Statements
from .terminating import checked_patterns, terminate

COMMAND_WAIT_S, COMMAND_POLL_S, COMMAND_POLL_MAX_S = 5.0, 0.05, 1.0
COMMANDS_AHEAD_MAX = 1000
"""So many numbers further than the last command no other server can be: nothing is waited for."""
FIRST_READS_MAX = 16
"""Requests at a time that wait until a new query has read its topics: each holds a thread, of the 40 that all requests share."""
TERMINATED_TEXT = "The cluster has been terminated. No new request will be accepted."
JSON = "application/vnd.ksql.v1+json"
Handler = Callable[[Request], Awaitable[Response]]


class SqlApp:
    """The endpoints over one engine."""

    def __init__(self, engine: SqlEngine, *, version: str, users: Users | None = None) -> None:
        self._engine, self._version = engine, version
        self._statements, self._queries = Statements(engine), Queries(engine)
        self._first_reads = asyncio.Semaphore(FIRST_READS_MAX)
        self._cluster_id = str(engine.log.admin().request("Metadata", topics=[]).cluster_id)
        posts = {
            "/ksql": self._ksql,
            "/ksql/terminate": self._terminate,
            "/query": self._query,
            "/query-stream": self._query_stream,
            "/inserts-stream": self._inserts,
            "/close-query": self._close,
            "/lag": self._accepted,
            "/heartbeat": self._accepted,
            "/console/picture": self._picture,
        }
        gets = {
            "/": self._root,
            "/console/{file}": self._console,
            "/info": self._info,
            "/healthcheck": self._health,
            "/status": self._all_status,
            "/status/{type}/{entity}/{action}": self._status,
            "/clusterStatus": self._cluster,
            "/lag": self._lag,
            "/is_valid_property/{name}": self._is_valid_property,
            "/v1/metadata": self._metadata,
            "/v1/metadata/id": self._metadata,
            "/chc/live": self._alive,
            "/chc/ready": self._alive,
        }
        self.endpoints = [*(("POST", path) for path in posts), *(("GET", path) for path in (*gets, "/ws/query"))]
        """(method, path) of each."""
        self._refusal: RestError | None = None
        routes: list[Any] = [Route(path, _answering(handler), methods=["GET"]) for path, handler in gets.items()]
        routes.append(WebSocketRoute("/ws/query", self._socket))
        others = Starlette(routes=routes, exception_handlers={404: _not_found, 405: _not_found})
        begins = dict.fromkeys(posts, self._begins_in_turn) | {"/ksql": self._begins_at_once}
        answering = {path: _answering(handler, begins[path]) for path, handler in posts.items()}
        self.asgi: ASGIApp = _Guard(_Posts(answering, others), users)

    def close(self) -> None:
        """End the queries that are still followed, and begin nothing any more."""
        self._refusal = RestError(SHUTTING_DOWN, "The server is shutting down")
        self._queries.close_all(self._refusal)

    def _check_begins(self) -> None:
        """Raises RestError: nothing is begun any more."""
        if self._refusal is not None:
            raise self._refusal

    async def _begins_at_once(self, scope: Scope) -> None:
        self._check_begins()

    async def _begins_in_turn(self, scope: Scope) -> None:
        await in_turn(scope)
        self._check_begins()

    async def _terminate(self, request: Request) -> Response:
        asked = decoded(await body_of(request), TerminateRequest)
        session = session_of(None, None, request.scope)
        wanted = checked_patterns(asked.deleteTopicList, session)
        self._check_begins()
        self._refusal = own = RestError(TERMINATED, TERMINATED_TEXT)  # nothing is begun while this goes on
        try:
            await run_in_threadpool(terminate, self._engine, wanted, session)
        except BaseException:
            self._refusal = None if self._refusal is own else self._refusal
            raise
        await run_in_threadpool(self._queries.close_all, own)
        return _json([])

    async def _ksql(self, request: Request) -> Response:
        asked = decoded(await body_of(request), KsqlRequest)
        session = session_of(asked.streamsProperties, asked.sessionVariables, request.scope)
        await self._has_applied(asked.commandSequenceNumber)
        if asked.waitsUntilRead:
            session.on_read, session.reads_until_s = lambda read, total: None, time.monotonic() + LIMIT_S
        sending = self._statements.insert_at_once(asked.ksql, session)
        if sending is None:
            await self._begins_in_turn(request.scope)
            async with self._first_reads if asked.waitsUntilRead else contextlib.nullcontext():
                return _json(await run_in_threadpool(self._statements.execute, asked.ksql, session))
        let_next(request.scope)
        try:
            await sending.done()
        except (LogflumeError, TimeoutError) as error:
            raise as_rest_error(error, asked.ksql) from error
        return _json([])

    async def _query(self, request: Request) -> Response:
        asked = decoded(await body_of(request), KsqlRequest)
        session = session_of(asked.streamsProperties, asked.sessionVariables, request.scope, asked.requestProperties)
        await self._has_applied(asked.commandSequenceNumber)
        return await self._answer(asked.ksql, session, Chunked)

    async def _has_applied(self, number: int | None) -> None:
        """Wait until a command is applied here that the client was told of, maybe by another server. Raises RestError."""
        given_up_s, pause_s = time.monotonic() + COMMAND_WAIT_S, COMMAND_POLL_S
        last_command = self._engine.following.last_command
        while number is not None and number > (last := await run_in_threadpool(last_command, at_least=number)):
            if number > last + COMMANDS_AHEAD_MAX or time.monotonic() >= given_up_s:
                raise RestError(
                    COMMAND_AWAITED,
                    "Timed out while waiting for a previous command to execute. command sequence number: "
                    f"{number}; this server knows none of that number",
                )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, COMMAND_POLL_MAX_S)

    async def _query_stream(self, request: Request) -> Response:
        wanted = request.headers.get("accept")
        media_type = accepted(wanted, MEDIA_TYPES)
        if media_type is None:
            raise RestError(NOT_ACCEPTABLE, f"expected one of {', '.join(MEDIA_TYPES)} in Accept, found {wanted}")
        asked = decoded(await body_of(request), StreamRequest)
        session = session_of(asked.properties, asked.sessionVariables, request.scope, asked.requestProperties)
        kind = MEDIA_TYPES[media_type]
        return await self._answer(asked.sql, session, kind, tells_read=asked.tellsRead and kind is Delimited)

    async def _answer(self, text: str, session: Session, kind: Kind, *, tells_read: bool = False) -> Response:
        started = self._queries.start_at_once(text, session)
        if started is None and tells_read:
            reading = Reading(self._queries, text, session)
            started = await reading.soon()
            if started is None:
                return StreamingResponse(reading.told(Delimited()), media_type=Delimited.media_type)
        if started is None:
            started = await run_in_threadpool(self._queries.start, text, session)
        try:
            form: Form = await run_in_threadpool(Protobuf, started.columns) if kind is Protobuf else kind()
        except InvalidInput as error:
            await run_in_threadpool(self._queries.close, started.id)
            raise RestError(NOT_ACCEPTABLE, f"these rows cannot be {kind.media_type}: {error}") from error
        content = whole(started, form)
        if content is not None:
            return Response(content, media_type=form.media_type)
        return StreamingResponse(written(started, form, self._queries), media_type=form.media_type)

    async def _inserts(self, request: Request) -> Response:
        lines = acknowledged(self._parts(request), self._engine, request.scope[RIGHTS])
        first = await anext(lines)  # the target is refused with a status of its own

        async def all_lines() -> AsyncIterator[bytes]:
            yield first
            try:
                async for line in lines:
                    yield line
            except RestError as error:
                yield to_json({"status": "error", "error_code": error.code, "message": error.message}) + b"\n"

        return _TwoWay(all_lines(), media_type=Delimited.media_type)

    async def _parts(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the parts of a request that stays open, as long as anything is begun. Raises RestError."""
        async for part in request.stream():
            self._check_begins()
            yield part

    async def _close(self, request: Request) -> Response:
        asked = decoded(await body_of(request), CloseRequest)
        if not await run_in_threadpool(self._queries.close, asked.queryId):
            raise RestError(BAD_REQUEST, f"No query with id {asked.queryId}")
        return Response(status_code=200)

    async def _socket(self, socket: WebSocket) -> None:
        """A query over a WebSocket: ?request={ksql, streamsProperties}; the schema first, then one message a row."""
        await socket.accept()
        form, code = _SocketForm(), 1000
        try:
            self._check_begins()
            asked = decoded(socket.query_params.get("request", ""), KsqlRequest)
            session = session_of(asked.streamsProperties, asked.sessionVariables, socket.scope, asked.requestProperties)
            await self._has_applied(asked.commandSequenceNumber)
            started = await run_in_threadpool(self._queries.start, asked.ksql, session)
            async for part in written(started, form, self._queries):
                for line in part.splitlines():
                    await socket.send_text(line.decode())
        except (LogflumeError, RestError) as error:
            code = 1002
            await socket.send_text(to_json(as_rest_error(error).body()).decode())
        except WebSocketDisconnect:
            return
        await socket.close(code)

    async def _root(self, request: Request) -> Response:
        return console.page() if console.is_asked(request.headers) else RedirectResponse("/info", 307)

    async def _console(self, request: Request) -> Response:
        found = console.file_of(request.path_params["file"])
        if found is None:
            raise RestError(NOT_FOUND, f"the console has no file {request.path_params['file']}")
        return found

    async def _picture(self, request: Request) -> Response:
        asked = decoded(await body_of(request), KsqlRequest)
        session = session_of(asked.streamsProperties, asked.sessionVariables, request.scope)
        return Response(await run_in_threadpool(self._engine.picture, asked.ksql, session=session), media_type="image/svg+xml")

    async def _info(self, request: Request) -> Response:
        info = {
            "version": self._version,
            "kafkaClusterId": self._cluster_id,
            "ksqlServiceId": self._engine.service,
            "serverStatus": "RUNNING" if self._refusal is None else "TERMINATED",
        }
        return _json({"KsqlServerInfo": info})

    async def _health(self, request: Request) -> Response:
        try:
            await run_in_threadpool(self._engine.following.catch_up)
            has_log = True
        except LogflumeError:
            has_log = False
        parts = {"metastore": True, "kafka": has_log, "commandRunner": has_log}
        details = {name: {"isHealthy": is_well} for name, is_well in parts.items()}
        return _json({"isHealthy": has_log, "details": details, "serverState": "READY"}, 200 if has_log else 503)

    async def _all_status(self, request: Request) -> Response:
        return _json({"commandStatuses": self._statements.statuses()})

    async def _status(self, request: Request) -> Response:
        command_id = "/".join(request.path_params[part] for part in ("type", "entity", "action"))
        found = self._statements.status(command_id)
        if found is None:
            raise RestError(NOT_FOUND, f"Command not found: {command_id}")
        return _json(found)

    async def _cluster(self, request: Request) -> Response:
        queries = await run_in_threadpool(self._engine.status)
        lags = {
            query_id: {str(task.name): {"currentOffsetPosition": None, "lag": _lag_of(task)} for task in status.tasks}
            for query_id, status in queries.items()
        }
        now_ms = int(time.time() * 1000)
        host = {
            "hostAlive": True,
            "lastStatusUpdateMs": now_ms,
            "activeStandbyPerQuery": {query_id: {"activeStores": [], "standByStores": []} for query_id in queries},
            "hostStoreLags": {"stateStoreLags": lags, "updateTimeMs": now_ms},
        }
        return _json({"clusterStatus": {request.headers.get("host", "localhost"): host}})

    async def _lag(self, request: Request) -> Response:
        queries = await run_in_threadpool(self._engine.status)
        return _json({"lags": {query_id: status.lag_records for query_id, status in queries.items()}})

    async def _accepted(self, request: Request) -> Response:
        """Of another server, which follows the command topic as this one does: nothing has to be told."""
        await body_of(request)
        return _json({"isOk": True})

    async def _is_valid_property(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not is_known(name):
            raise RestError(BAD_REQUEST, f"Not recognizable as ksql, streams, consumer, or producer property: '{name}'")
        return _json(True)

    async def _metadata(self, request: Request) -> Response:
        return _json(
            {"scope": {"path": [], "clusters": {"kafka-cluster": self._cluster_id, "ksql-cluster": self._engine.service}}}
        )

    async def _alive(self, request: Request) -> Response:
        return _json({})


class _TwoWay(StreamingResponse):
    """An answer that is written while its request is still read: nobody else may receive."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.stream_response(send)


def _lag_of(task: Any) -> int | None:
    lags = [each.lag_records for each in task.inputs]
    return None if None in lags else sum(lags)


class _SocketForm(Chunked):
    """One message each: the schema as {name, type} objects, then {row}; as /query writes them, without the array around."""

    def head(self, query: Any) -> bytes:
        return super().head(query)[1:] + b"\n"

    def row(self, columns: Any, row: Any) -> bytes:
        return super().row(columns, row)[2:] + b"\n"

    def token(self, token: str) -> bytes:
        return super().token(token)[2:] + b"\n"

    def end(self, message: str | None, error: str | None) -> bytes:
        return super().end(message, error).removeprefix(b",\n").removesuffix(b"]\n")


def _json(content: Any, status: int = 200) -> Response:
    return Response(to_json(content), status, media_type=JSON)


def _answering(handler: Handler, begins: Callable[[Scope], Awaitable[None]] = in_turn) -> Handler:
    """Return a handler whose errors are answered in the interface's form. `begins` raises RestError if it may not begin."""

    async def answer(request: Request) -> Response:
        try:
            await begins(request.scope)
            return await handler(request)
        except (LogflumeError, RestError) as error:
            refused = as_rest_error(error)
            return _json(refused.body(), refused.status)

    return answer


async def _not_found(request: Request, error: Exception) -> Response:
    refused = RestError(NOT_FOUND, f"no endpoint {request.method} {request.url.path}")
    return _json(refused.body(), refused.status)


@lru_cache(maxsize=256)
def _is_of_this_machine(host: str) -> bool:
    """Tell whether a Host header names this machine, or nothing."""
    return urlsplit(f"//{host}").hostname in (None, "localhost", "127.0.0.1", "::1")


def _header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of a name in small letters, as ASGI has them; each request is asked for several."""
    return next((value for each, value in scope["headers"] if each == name), None)


class _Posts:
    """Gives POSTs to their handlers and everything else to another app: its way there takes as long as the answer to a pull."""

    def __init__(self, handlers: Mapping[str, Handler], others: ASGIApp) -> None:
        self._handlers, self._others = handlers, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handlers.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        with contextlib.suppress(ClientDisconnect):  # nobody is left to be answered
            if handler is None:
                await self._others(scope, receive, send)
                return
            response = await handler(Request(scope, receive))
            await response(scope, receive, send)


class _Guard:
    """Refuses strangers, and pages of other sites in a browser, before anything is read of a request."""

    def __init__(self, app: ASGIApp, users: Users | None) -> None:
        self._app, self._users = app, users

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            scope[RIGHTS] = await self._rights(scope)
        except RestError as refused:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            more = {"WWW-Authenticate": 'Basic realm="logflume", Bearer'} if refused.status == 401 else None
            await Response(to_json(refused.body()), refused.status, more, JSON)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _rights(self, scope: Scope) -> Rights:
        host, origin = (_header(scope, b"host") or b"").decode("latin-1"), _header(scope, b"origin")
        if origin is not None and urlsplit(site := origin.decode("latin-1")).netloc != host:
            raise RestError(FORBIDDEN, f"requests of pages of {site} are not taken")
        if self._users is not None:
            try:
                return await self._users.rights(_header(scope, b"authorization"))
            except RegistryError as error:
                if error.fault is not Fault.UNAUTHORIZED:
                    raise RestError(NOT_READY, str(error)) from None
                raise RestError(NOT_AUTHENTICATED, "expected a known user: Basic or Bearer in Authorization") from None
        if not _is_of_this_machine(host):
            raise RestError(FORBIDDEN, f"without users only this machine is served, found Host: {host}")
        return EVERYTHING
