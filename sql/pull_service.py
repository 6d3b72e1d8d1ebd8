"""Pull queries between processes: the process that holds a query's state answers for those that do not.

A worker serves them over HTTP on loopback and writes its address to a compacted topic; `ask` finds the addresses there. One
request is one statement: POST /pull {sql, properties} -> {title, columns: [{name, type}], rows, note}, or 4xx {error}.
GET /status -> what each running query is doing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from logflume.log import LogflumeError, TopicPartition
from logflume.log.interfaces import Log
from logflume.log.schemas import Column
from logflume.streams.runtime import EngineStatus

from .results import Rows

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import JSONResponse

    from .engine import SqlEngine

WORKERS_TOPIC = "_logflume-sql-workers"
BODY_BYTES_MAX = 1 << 20
ASK_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 1.0


class PullService:
    """Serves pull queries of an engine on a free loopback port until closed. Context manager."""

    def __init__(self, engine: SqlEngine, log: Log) -> None:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.routing import Route

        self._engine, self._log = engine, log
        routes = [Route("/pull", self._pull, methods=["POST"]), Route("/status", self._status)]
        self._socket = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(Starlette(routes=routes), log_level="error", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="pull-service", daemon=True)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> PullService:
        self._thread.start()
        announce(self._log, self.address)
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(LogflumeError):
            announce(self._log, None)
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
            asked = json.loads(body)
            sql, properties = asked["sql"], asked.get("properties", {})
            assert isinstance(sql, str)
            assert isinstance(properties, dict)
        except (ValueError, KeyError, TypeError, AssertionError):
            return JSONResponse({"error": 'expected a JSON object {"sql": text, "properties": object}'}, 400)
        try:
            rows = await run_in_threadpool(self._answer, sql, properties)
        except LogflumeError as error:
            return JSONResponse({"error": str(error)}, 400)
        return JSONResponse(rows)

    async def _status(self, request: Request) -> JSONResponse:
        from starlette.responses import JSONResponse

        return JSONResponse(msgspec.to_builtins(self._engine.status()))

    def _answer(self, sql: str, properties: Mapping[str, str]) -> dict[str, Any]:
        result = self._engine.pull(sql, properties)
        return {
            "title": result.title,
            "columns": msgspec.to_builtins(result.columns),
            "rows": [[plain(value) for value in row] for row in result.rows],
            "note": result.note,
        }


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


def announce(log: Log, address: str | None) -> None:
    """Write this process' address (None: gone) to the workers' topic."""
    log.admin().ensure_topic(WORKERS_TOPIC, partitions=1, configs={"cleanup.policy": "compact"})
    producer = log.producer(linger_ms=0)
    try:
        key = f"{socket.gethostname()}-{os.getpid()}".encode()
        producer.send(WORKERS_TOPIC, address.encode() if address else None, key=key).result(timeout=30)
    finally:
        producer.close()


def addresses(log: Log) -> list[str]:
    """Return the addresses of the workers, newest first; some may be gone."""
    if WORKERS_TOPIC not in log.admin().list_topics(include_internal=True):
        return []
    tp = TopicPartition(WORKERS_TOPIC, 0)
    end = log.admin().end_offsets([tp])[tp]
    consumer = log.consumer()
    newest: dict[bytes | None, str | None] = {}
    try:
        consumer.assign([tp])
        while consumer.position(tp) < end:
            for chunk in consumer.poll(timeout_s=5.0):
                for record in chunk.records():
                    newest.pop(record.key, None)
                    newest[record.key] = record.value.decode() if record.value else None
    finally:
        consumer.close()
    return [address for address in reversed(newest.values()) if address]


def has_worker(log: Log) -> bool:
    """Return whether a worker that runs the persistent queries is up."""
    for address in addresses(log):
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S):
            return True
    return False


def ask_status(log: Log) -> dict[str, EngineStatus]:
    """Return what the workers' queries are doing, by query id; the figures of the first worker that answers."""
    import httpx

    for address in addresses(log):
        try:
            answer = httpx.get(f"http://{address}/status", timeout=httpx.Timeout(5.0, connect=CONNECT_TIMEOUT_S))
        except httpx.HTTPError:
            continue
        if answer.status_code == 200:
            return msgspec.convert(answer.json(), dict[str, EngineStatus])
    return {}


def ask(log: Log, sql: str, properties: Mapping[str, str]) -> Rows | None:
    """Let a worker answer a pull query; None when none is there that does."""
    import httpx

    for address in addresses(log):
        timeout = httpx.Timeout(ASK_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        try:
            answer = httpx.post(f"http://{address}/pull", json={"sql": sql, "properties": dict(properties)}, timeout=timeout)
        except httpx.HTTPError:
            continue
        if answer.status_code != 200:
            continue
        found = answer.json()
        columns = msgspec.convert(found["columns"], tuple[Column, ...])
        rows = tuple(tuple(rich(value) for value in row) for row in found["rows"])
        return Rows(found["title"], columns, rows, found["note"])
    return None
