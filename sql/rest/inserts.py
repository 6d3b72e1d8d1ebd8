"""/inserts-stream: rows as JSON objects, one a line, each acknowledged once it is on disk; a refused row stops only itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool

from logflume.log import LogflumeError
from logflume.sql.engine import SqlEngine

from .errors import BAD_REQUEST, RestError, as_rest_error
from .requests import InsertsTarget, as_text, decoded
from .values import to_json

LINE_BYTES_MAX = 1 << 20
_DECODER = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)


async def acknowledged(parts: AsyncIterator[bytes], engine: SqlEngine) -> AsyncIterator[bytes]:
    """Yield a line for each row: {status: ok, seq}, or {status: error, seq, error_code, message}. Lines of one part go together.

    Raises:
        RestError: the first line names no stream or table; nothing was written.
    """
    target: InsertsTarget | None = None
    seq = 0
    rest = b""
    async for part in _with_end(parts):
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise RestError(BAD_REQUEST, f"a line holds at most {LINE_BYTES_MAX} bytes")
        lines = [line for line in lines if line.strip()]
        if target is None and lines:
            target = decoded(lines.pop(0), InsertsTarget)
            await run_in_threadpool(engine.insert_target, target.target)
            yield b""
        if target is not None and lines:
            yield await run_in_threadpool(_insert, engine, target, lines, seq)
            seq += len(lines)
    if target is None:
        raise RestError(BAD_REQUEST, 'expected {"target": STREAM} in the first line')


async def _with_end(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for part in parts:
        yield part
    yield b"\n"


def _insert(engine: SqlEngine, target: InsertsTarget, lines: list[bytes], first: int) -> bytes:
    """Write rows together, wait for all, and tell of each."""
    properties = as_text(target.properties)
    rows: list[dict[str, Any] | Exception] = []
    for line in lines:
        try:
            rows.append(_DECODER.decode(line))
        except (ValueError, RecursionError) as error:
            rows.append(RestError(BAD_REQUEST, f"Invalid JSON in inserts stream: {error}"))
    told = []
    for seq, outcome in enumerate(engine.insert_rows(target.target, rows, properties), first):
        if outcome is None:
            told.append(to_json({"status": "ok", "seq": seq}))
            continue
        refused = as_rest_error(outcome) if isinstance(outcome, LogflumeError | RestError) else None
        if refused is None:
            raise outcome
        told.append(to_json({"status": "error", "seq": seq, "error_code": refused.code, "message": refused.message}))
    return b"\n".join(told) + b"\n"
