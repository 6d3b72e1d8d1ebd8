"""INSERT INTO ... VALUES: one row as a record, checked against the columns before anything is written."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import groupby
from typing import Any

from logflume.log import Chunk, InvalidInput, LogflumeError, near_matches
from logflume.log.interfaces import Log, Producer
from logflume.log.schemas import ANY, BIGINT, STRING, TIMESTAMP, Column, Kind
from logflume.streams import expr as x
from logflume.streams.functions import can_convert, convert
from logflume.streams.texts import to_text

from . import ast
from .binding.coercion import implicit_cast
from .binding.context import Context
from .binding.expressions import Binder
from .binding.scope import Scope
from .catalog import Catalog, SourceInfo
from .errors import NotSupported, StatementError
from .evaluate import evaluate
from .row_records import RecordColumns, RecordMakers, RowRecords, ValuesRecord, now_ms
from .types import show_type

WRITE_TIMEOUT_S = 60.0
PENDING_MAX = 1_000
CHUNK_RECORDS_MIN = 32
"""From this many on, records go as a chunk with one acknowledgement: a future for each costs more than all the rest."""
_REFUSED = ("ROWPARTITION", "ROWOFFSET", "WINDOWSTART", "WINDOWEND")


class Sending:
    """Records on their way to the disk."""

    def __init__(self, futures: list[tuple[int, Future[Any]]], on_failure: Callable[[], None]) -> None:
        self._futures, self._on_failure = futures, on_failure

    def outcomes(self) -> list[Exception | None]:
        """Wait until all are on disk or refused; return what each failed by.

        Records that went as one chunk fail together: when that is told of them, some of them may be in the log.
        """
        found: list[Exception | None] = []
        for count, future in self._futures:
            try:
                future.result(timeout=WRITE_TIMEOUT_S)
                found += [None] * count
            except (LogflumeError, TimeoutError) as error:
                found += [error] * count
        if any(found):
            self._on_failure()
        return found

    async def done(self) -> None:
        """Return when all are on disk. Raises what one of them was refused for."""
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                for _, future in self._futures:
                    await _settled(future)
        except (LogflumeError, TimeoutError):
            self._on_failure()
            raise


async def _settled(future: Future[Any]) -> None:
    """Return when a future of another thread is done. Raises what it failed by. At half the cost of `asyncio.wrap_future`."""
    loop = asyncio.get_running_loop()
    told = loop.create_future()

    def tell(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_tell, told)

    future.add_done_callback(tell)
    await told
    error = future.exception()
    if error is not None:
        raise error


def _tell(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)


class RecordWriter:
    """Writes records over a producer that is kept. Thread-safe.

    After a failure the next ones have a new producer, for this one may have lost its sequence.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._producer: Producer | None = None
        self._lock = threading.Lock()

    def can_send(self, topic: str) -> bool:
        """Tell whether `send` would not wait for anything now."""
        producer = self._producer
        return producer is not None and producer.can_queue(topic)

    def send(self, records: Sequence[ValuesRecord]) -> Sending:
        """Send records of one topic together; does not wait for the disk."""
        if len(records) >= CHUNK_RECORDS_MIN:
            return self.send_columns(RecordColumns.of(records))
        producer = self._current()
        each = (producer.send(r.topic, r.value, key=r.key, timestamp_ms=r.timestamp_ms, headers=r.headers) for r in records)
        return Sending([(1, future) for future in each], lambda: self._give_up(producer))

    def send_columns(self, records: RecordColumns) -> Sending:
        """Send records as one chunk; does not wait for the disk."""
        producer = self._current()
        chunk = Chunk.from_columns(records.topic, records.keys, records.values, records.timestamps_ms, headers=records.headers)
        future = producer.send_chunk(records.topic, chunk)
        return Sending([(len(chunk), future)], lambda: self._give_up(producer))

    def _current(self) -> Producer:
        with self._lock:
            self._producer = self._producer or self._log.producer(linger_ms=0)
            return self._producer

    def _give_up(self, producer: Producer) -> None:
        with self._lock:
            if self._producer is producer:
                self._producer = None
        producer.close()

    def close(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()


class PendingWrites:
    """Rows of statements that follow each other in a script: they go to the disk together, and nothing else runs before `wait`.

    At most PENDING_MAX statements are held; `text`: of the statement that `wait` raised for. Rows that went as one chunk fail
    together: the first of their statements is told.
    """

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer
        self._held: list[tuple[str, list[ValuesRecord]]] = []
        self.text = ""

    def add(self, text: str, records: list[ValuesRecord]) -> None:
        """Take the rows of a statement. Raises as `wait`."""
        self._held.append((text, records))
        if len(self._held) >= PENDING_MAX:
            self.wait()

    def wait(self) -> None:
        """Return when all are on disk. Raises what the first that failed failed by; those after it may be written."""
        held, self._held = self._held, []
        rows = [(text, record) for text, records in held for record in records]
        sent: list[tuple[list[str], Sending]] = []
        for _, group in groupby(rows, key=lambda row: row[1].topic):
            together = list(group)
            sent.append(([text for text, _ in together], self._writer.send([record for _, record in together])))
        for texts, sending in sent:
            for text, outcome in zip(texts, sending.outcomes(), strict=True):
                if outcome is not None:
                    self.text = text
                    raise outcome


def values_records(s: ast.InsertValues, context: Context, makers: RecordMakers) -> list[ValuesRecord]:
    """Return the records of one INSERT; all of its rows are fine then.

    Raises:
        StatementError: unknown source or column, a value that does not fit.
    """
    source = writable_source(s.target, context.catalog, s.span)
    headers = [h.name for h in source.headers if not s.columns or h.name in s.columns]
    if headers:
        raise StatementError(
            f"Cannot insert into HEADER columns: {', '.join(headers)}. Name the columns that have values.", s.span
        )
    try:
        return _records(s, source, context, makers)
    except StatementError as error:
        raise error.within(f"Failed to insert values into '{source.name}'. ") from error.__cause__


def _records(s: ast.InsertValues, source: SourceInfo, context: Context, makers: RecordMakers) -> list[ValuesRecord]:
    columns = {c.name: c for c in source.columns()}
    names = s.columns or tuple(columns)
    for row in s.rows:
        _check_columns(s, row, source, names, columns)
    try:
        records = makers.of(source)
    except InvalidInput as e:
        raise StatementError(f"Could not serialize the values: {e}", s.span) from None
    return [_row_record(s, row, records, names, context) for row in s.rows]


def _row_record(
    s: ast.InsertValues, row: Sequence[ast.Expression], records: RowRecords, names: Sequence[str], context: Context
) -> ValuesRecord:
    source = records.source
    columns = {c.name: c for c in source.columns()}
    binder = Binder(Scope(()), context.functions, context.catalog.types, "VALUES", fixed_now_ms=context.fixed_now_ms)
    values: dict[str, Any] = {}
    for name, e in zip(names, row, strict=True):
        column = Column(name, BIGINT) if name == "ROWTIME" else columns[name]
        values[name] = _value(e, column, binder)
    without = [c.name for c in source.key if c.name not in values]
    if source.is_table and (without or all(values[c.name] is None for c in source.key)):
        shown = ", ".join(without or [c.name for c in source.key])
        raise StatementError(f"Value for primary key column(s) {shown} is required for tables", s.span)
    key = None if all(values.get(c.name) is None for c in source.key) else tuple(values.get(c.name) for c in source.key)
    found = tuple(values.get(c.name) for c in source.value)
    stamp = values.get("ROWTIME")
    if stamp is None:
        stamp = now_ms() if context.fixed_now_ms is None else context.fixed_now_ms
    if stamp < 0:
        raise StatementError(f"ROWTIME must not be negative, found {stamp}", s.span)
    return records.record(key, found, stamp, s.span)


def writable_source(name: str, catalog: Catalog, span: ast.Span = ast.NOWHERE) -> SourceInfo:
    """Return a stream or table that takes rows from outside.

    Raises:
        StatementError: it does not exist, or takes none.
    """
    source = catalog.sources.get(name)
    if source is None:
        hint = catalog.hint(name)
        stop = "" if hint.startswith("\n") else "."
        raise StatementError(f"Cannot insert values into an unknown stream/table: `{name}`{stop}{hint}", span)
    if source.window is not None:
        raise StatementError(f"Cannot insert values into windowed stream/table! {source.name} is one.", span)
    if source.is_read_only:
        raise StatementError(f"Cannot insert values into read-only {source.kind.lower()}: {source.name}", span)
    return source


def _check_columns(
    s: ast.InsertValues,
    row: Sequence[ast.Expression],
    source: SourceInfo,
    names: tuple[str, ...],
    columns: dict[str, Column],
) -> None:
    if not s.columns and len(row) == len(columns) - len(source.key) and not source.key:
        return
    if len(names) != len(row):
        shown = f"Expected {len(names)} values ({', '.join(names)}), found {len(row)}."
        if s.columns:
            raise StatementError(f"Expected number columns and values to match: {len(names)}, {len(row)}. {shown}", s.span)
        raise StatementError(f"Expected a value for each column. {shown} Name the columns to give only some of them.", s.span)
    for name in names:
        if name in _REFUSED:
            raise StatementError(f"Inserting into column `{name}` is not allowed.", s.span)
        if name not in columns and name != "ROWTIME":
            near = near_matches(name, columns)
            hint = f" Did you mean {' or '.join(near)}?" if near else f" Its columns are {', '.join(columns)}."
            raise StatementError(f"Column name `{name}` does not exist. {source.name} has none of that name.{hint}", s.span)
    if len(set(names)) != len(names):
        raise StatementError(f"a column is named twice in ({', '.join(names)})", s.span)


def _value(e: ast.Expression, column: Column, binder: Binder) -> Any:
    if isinstance(e, ast.NullLiteral):
        return None
    bound = binder.bind(e)
    try:
        bound = binder.as_type(e, bound, column.type)
    except StatementError:
        if bound.type != ANY and not _is_loose(bound, column):
            raise StatementError(
                f"Expected type {show_type(column.type)} for field `{column.name}` but got {_shown_value(bound)}", e.span
            ) from None
        bound = _loosely(bound, column, e)
    try:
        return evaluate(bound, {}, is_strict=True)
    except NotSupported:
        raise
    except (ArithmeticError, ValueError, TypeError, KeyError) as error:
        raise StatementError(f"Failed to compute the value of `{column.name}`: {error}", e.span) from None


_TIME_LAYOUTS = {
    Kind.TIMESTAMP: " Timestamp format must be yyyy-mm-ddThh:mm:ss[.S].",
    Kind.TIME: " Time format must be hh:mm:ss[.S].",
    Kind.DATE: " Date format must be yyyy-mm-dd.",
}


def _shown_value(bound: x.Expr) -> str:
    """Write a literal with the kind of its type, as in BIGINT(7); the type alone of anything else."""
    if not isinstance(bound, x.Literal):
        return show_type(bound.type)
    return f"{bound.type.kind.name}({to_text(bound.value, bound.type)})"


def _is_loose(bound: x.Expr, column: Column) -> bool:
    return can_convert(bound.type, column.type) and (bound.type == STRING or column.type in (STRING, TIMESTAMP))


def _loosely(bound: x.Expr, column: Column, e: ast.Expression) -> x.Expr:
    if isinstance(bound, x.Literal):
        try:
            return x.Literal(convert(bound.value, bound.type, column.type), column.type)
        except (ValueError, ArithmeticError) as error:
            found = f"{_shown_value(bound)}.{_TIME_LAYOUTS.get(column.type.kind, '')} {error}"
            raise StatementError(
                f"Expected type {show_type(column.type)} for field `{column.name}` but got {found}", e.span
            ) from None
    return implicit_cast(bound, column.type)
