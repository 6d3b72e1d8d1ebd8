"""Pull and push queries over HTTP: started, written in the form that was asked for, closed by id or with the connection."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import uuid
from collections.abc import AsyncGenerator, Iterator

from starlette.concurrency import run_in_threadpool

from logflume.log import LogflumeError
from logflume.sql import ast
from logflume.sql.engine import SqlEngine
from logflume.sql.errors import QueryFailed, StatementError
from logflume.sql.parser import KEPT_CHARS_MAX, parse_statement, sole_scanned
from logflume.sql.pull import KEYS_MAX
from logflume.sql.results import PushQuery, PushRow, Rows
from logflume.sql.scripts import split_script
from logflume.sql.session import Session

from .errors import BAD_STATEMENT, TOO_MANY_QUERIES, RestError, as_rest_error
from .forms import Form, StartedQuery

BATCH_ROWS = 500
POLL_S = 0.1
PUSH_QUERIES_MAX = 100
KEYS_AT_ONCE_MAX = 64
"""More are read in a thread: others wait for the loop meanwhile."""


class Queries:
    """Starts queries, at most `push_max` push queries at a time, and closes them. Thread-safe."""

    def __init__(self, engine: SqlEngine, *, push_max: int = PUSH_QUERIES_MAX) -> None:
        self._engine, self._push_max = engine, push_max
        self._running: dict[str, PushQuery] = {}
        self._refusal: RestError | None = None
        self._name, self._numbers = uuid.uuid4().hex[:8], itertools.count(1)
        self._lock = threading.Lock()

    def start(self, text: str, session: Session) -> StartedQuery:
        """Start one query; a pull query is answered here. `close` ends it.

        Raises:
            RestError: it is no query, is refused, too many run, or none is begun any more.
        """
        try:
            if (found := self._pulled(text, session, KEYS_MAX)) is not None:
                return found
            sources = list(split_script(text))
            if len(sources) != 1:
                raise RestError(BAD_STATEMENT, f"Expected exactly one KSQL statement; found {len(sources)} instead", text)
            statement = parse_statement(sources[0], variables=session.variables)
            if not isinstance(statement, ast.QueryStatement | ast.Print):
                raise RestError(BAD_STATEMENT, "Statement type is not a query: it should be sent to '/ksql'", text)
            if isinstance(statement, ast.Print) or statement.query.emit is not None:
                self._reserve()
            (result,) = self._engine.execute_one(sources[0], session=session)
        except (LogflumeError, RecursionError) as error:
            at = error.text or text if isinstance(error, StatementError) else text
            raise as_rest_error(error, at) from error
        if isinstance(result, PushQuery):
            name = statement.topic if isinstance(statement, ast.Print) else statement.query.source.name
            query_id = f"transient_{name}_{uuid.uuid4().hex[:16]}"
            with self._lock:
                refusal = self._refusal
                if refusal is None:
                    self._running[query_id] = result
            if refusal is not None:
                result.close()
                raise refusal
            return StartedQuery(query_id, result.columns, {}, result)
        assert isinstance(result, Rows)
        assert isinstance(statement, ast.QueryStatement)
        return self._answered(result, statement.query.source.name)

    def start_at_once(self, text: str, session: Session) -> StartedQuery | None:
        """Answer a pull query that waits for nothing, so that it needs no thread of its own; None: `start` has to."""
        return self._pulled(text, session, KEYS_AT_ONCE_MAX) if len(text) <= KEPT_CHARS_MAX else None

    def _pulled(self, text: str, session: Session, keys_max: int) -> StartedQuery | None:
        """Answer a pull query by keys whose state is here, if nothing is new of it but its literals."""
        scanned = sole_scanned(text)
        rows = None if scanned is None else self._engine.at_once.pull(scanned, session, keys_max=keys_max)
        return None if rows is None else self._answered(rows, rows.title)

    def _answered(self, rows: Rows, name: str) -> StartedQuery:
        source = self._engine.catalog.sources.get(name)
        ended = "Limit Reached" if rows.is_limited else "Query Completed"
        final = ended if source is not None and not source.is_table else None
        return StartedQuery(f"query_{self._name}_{next(self._numbers)}", rows.columns, rows.roles, rows, final)

    def _reserve(self) -> None:
        with self._lock:
            if len(self._running) >= self._push_max:
                raise RestError(TOO_MANY_QUERIES, f"Maximum number of push queries ({self._push_max}) exceeded")

    def close(self, query_id: str) -> bool:
        """End a push query; tell whether there was one of that id."""
        with self._lock:
            query = self._running.pop(query_id, None)
        if query is not None:
            query.close()
        return query is not None

    def close_all(self, refusal: RestError) -> None:
        """End all push queries; one that is being started gets this refusal."""
        with self._lock:
            self._refusal, running = refusal, list(self._running)
        for query_id in running:
            self.close(query_id)


def whole(query: StartedQuery, form: Form) -> bytes | None:
    """Return the answer of a query that has ended and is short; None: it is written as it comes (`written`)."""
    if not isinstance(query.rows, Rows) or len(query.rows.rows) > BATCH_ROWS:
        return None
    return b"".join((form.head(query), *_parts(query, query.rows, form), form.end(query.final, None)))


async def written(query: StartedQuery, form: Form, queries: Queries) -> AsyncGenerator[bytes]:
    """Yield an answer in a form; when whoever reads it goes away, or it ends, the query is closed."""
    try:
        yield form.head(query)
        if isinstance(query.rows, Rows):
            for part in _parts(query, query.rows, form):
                yield part
            yield form.end(query.final, None)
            return
        push, left = query.rows, query.rows.limit
        error = None
        while left != 0 and not push.is_cancelled:
            try:
                rows = await run_in_threadpool(_next_rows, push, BATCH_ROWS if left is None else min(left, BATCH_ROWS))
            except QueryFailed as failed:
                error = None if push.is_cancelled else str(failed)  # who closes it ends it, which is no fault
                break
            if rows:
                left = None if left is None else left - len(rows)
                token = push.token
                yield b"".join(form.row(query.columns, row) for row in rows) + (b"" if token is None else form.token(token))
        yield form.end("Limit Reached" if left == 0 else None, error)
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(run_in_threadpool(queries.close, query.id))


def _parts(query: StartedQuery, rows: Rows, form: Form) -> Iterator[bytes]:
    each = iter(rows.rows)
    while batch := list(itertools.islice(each, BATCH_ROWS)):
        yield b"".join(form.row(query.columns, PushRow(values, 0)) for values in batch)


def _next_rows(push: PushQuery, most: int) -> list[PushRow]:
    """Return the rows that are there, waiting a little for the first."""
    rows = []
    row = push.poll(timeout_s=POLL_S)
    while row is not None:
        rows.append(row)
        row = push.poll(timeout_s=0) if len(rows) < most else None
    return rows
