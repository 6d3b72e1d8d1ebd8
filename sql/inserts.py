"""INSERT INTO ... VALUES: one row as a record, checked against the columns before anything is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logflume.log import DecodeError, InvalidInput, LogflumeError, near_matches
from logflume.log.interfaces import Log, Producer
from logflume.log.schemas import ANY, BIGINT, STRING, TIMESTAMP, Column, serde
from logflume.log.schemas.coerce import from_json
from logflume.streams import expr as x
from logflume.streams.functions import can_convert, convert

from . import ast
from .binding.coercion import implicit_cast
from .binding.context import Context
from .binding.expressions import Binder
from .binding.scope import Scope
from .catalog import Catalog, SourceInfo
from .errors import NotSupported, StatementError
from .evaluate import evaluate
from .types import show_type

WRITE_TIMEOUT_S = 60.0
TOGETHER_MS = 5
_REFUSED = ("ROWPARTITION", "ROWOFFSET", "WINDOWSTART", "WINDOWEND")


@dataclass(frozen=True, slots=True)
class ValuesRecord:
    """A record to be written."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class RecordWriter:
    """Writes records over producers that are kept. Thread-safe; acknowledged on return."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._producers: dict[int, Producer] = {}
        self._lock = threading.Lock()

    def write(self, records: Sequence[ValuesRecord]) -> None:
        """Write the records of a statement, and return when they are on disk."""
        for failure in self.write_all(records):
            if failure is not None:
                raise failure

    def write_all(self, records: Sequence[ValuesRecord]) -> list[Exception | None]:
        """Write records together; return, once all are on disk or refused, what each failed by.

        After a failure the next ones have a new producer, for this one may have lost its sequence.
        """
        linger_ms = 0 if len(records) == 1 else TOGETHER_MS
        producer = self._producer(linger_ms)
        futures = [producer.send(r.topic, r.value, key=r.key, timestamp_ms=r.timestamp_ms) for r in records]
        failures: list[Exception | None] = []
        for future in futures:
            try:
                future.result(timeout=WRITE_TIMEOUT_S)
                failures.append(None)
            except (LogflumeError, TimeoutError) as error:
                failures.append(error)
        if any(failures):
            with self._lock:
                if self._producers.get(linger_ms) is producer:
                    self._producers.pop(linger_ms)
            producer.close()
        return failures

    def _producer(self, linger_ms: int) -> Producer:
        with self._lock:
            found = self._producers.get(linger_ms)
            if found is None:
                found = self._producers[linger_ms] = self._log.producer(linger_ms=linger_ms)
            return found

    def close(self) -> None:
        with self._lock:
            producers, self._producers = list(self._producers.values()), {}
        for producer in producers:
            producer.close()


def values_records(s: ast.InsertValues, context: Context) -> list[ValuesRecord]:
    """Return the records of one INSERT; all of its rows are fine then.

    Raises:
        StatementError: unknown source or column, a value that does not fit.
    """
    source = writable_source(s.target, context.catalog, s.span)
    columns = {c.name: c for c in source.columns()}
    names = s.columns or tuple(columns)
    for row in s.rows:
        _check_columns(s, row, source, names, columns)
    return [_row_record(s, row, source, names, context) for row in s.rows]


def _row_record(
    s: ast.InsertValues, row: Sequence[ast.Expression], source: SourceInfo, names: Sequence[str], context: Context
) -> ValuesRecord:
    columns = {c.name: c for c in source.columns()}
    binder = Binder(Scope(()), context.functions, context.catalog.types, "VALUES", fixed_now_ms=context.fixed_now_ms)
    values: dict[str, Any] = {}
    for name, e in zip(names, row, strict=True):
        column = Column(name, BIGINT) if name == "ROWTIME" else columns[name]
        values[name] = _value(e, column, binder)
    if source.is_table and all(values.get(c.name) is None for c in source.key):
        shown = ", ".join(c.name for c in source.key)
        raise StatementError(
            f"Failed to insert values into '{source.name}'. Value for primary key column(s) {shown} is required for tables",
            s.span,
        )
    key = None if all(values.get(c.name) is None for c in source.key) else tuple(values.get(c.name) for c in source.key)
    found = tuple(values.get(c.name) for c in source.value)
    stamp = _now_ms(context) if values.get("ROWTIME") is None else values["ROWTIME"]
    if stamp < 0:
        raise StatementError(f"ROWTIME must not be negative, found {stamp}", s.span)
    return _record(source, key, found, stamp, s.span)


def object_record(source: SourceInfo, row: Mapping[str, Any], context: Context) -> ValuesRecord:
    """Return the record of a row that came as a JSON object; fields that it lacks are null, names may be in any case.

    Raises:
        StatementError: an unknown field, a value that does not fit, a table's row without its key.
    """
    columns = {c.name: c for c in source.columns()}
    values: dict[str, Any] = {}
    for name, value in row.items():
        column = columns.get(name) or columns.get(name.upper())
        if column is None:
            near = near_matches(name, columns)
            hint = f" Did you mean {' or '.join(near)}?" if near else f" Its columns are {', '.join(columns)}."
            raise StatementError(f"Column name(s) `{name}` does not exist in {source.name}.{hint}")
        try:
            values[column.name] = from_json(value, column.type, column.name)
        except DecodeError as error:
            raise StatementError(f"Could not take the value of `{column.name}`: {error}") from None
    has_key = any(values.get(c.name) is not None for c in source.key)
    if source.is_table and not has_key:
        raise StatementError(f"Value for primary key column(s) {', '.join(c.name for c in source.key)} is required for tables")
    key = tuple(values.get(c.name) for c in source.key) if has_key else None
    return _record(source, key, tuple(values.get(c.name) for c in source.value), _now_ms(context), ast.NOWHERE)


def _now_ms(context: Context) -> int:
    return context.fixed_now_ms if context.fixed_now_ms is not None else time.time_ns() // 1_000_000


def _record(
    source: SourceInfo, key: tuple[Any, ...] | None, row: tuple[Any, ...], timestamp_ms: int, span: ast.Span
) -> ValuesRecord:
    try:
        key_bytes = serde(source.key_format, source.key).encode(key)
        value_bytes = serde(source.value_format, source.value).encode(row)
    except InvalidInput as e:
        raise StatementError(f"Could not serialize the values: {e}", span) from None
    return ValuesRecord(source.topic, key_bytes, value_bytes, timestamp_ms)


def writable_source(name: str, catalog: Catalog, span: ast.Span = ast.NOWHERE) -> SourceInfo:
    """Return a stream or table that takes rows from outside.

    Raises:
        StatementError: it does not exist, or takes none.
    """
    source = catalog.sources.get(name)
    if source is None:
        raise StatementError(f"Cannot insert values into an unknown stream/table: `{name}`{catalog.hint(name)}", span)
    if source.is_read_only:
        raise StatementError(f"Cannot insert values into read-only {source.kind.lower()}: {source.name}", span)
    if source.headers:
        raise StatementError(f"Cannot insert into {source.name} because it has header columns", span)
    if source.window is not None:
        raise StatementError(f"Cannot insert values into windowed stream or table {source.name}", span)
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
        raise StatementError(
            f"Expected {len(names)} values ({', '.join(names)}), found {len(row)}. Name the columns to give only some of them.",
            s.span,
        )
    for name in names:
        if name in _REFUSED:
            raise StatementError(f"Inserting into column `{name}` is not allowed.", s.span)
        if name not in columns and name != "ROWTIME":
            near = near_matches(name, columns)
            hint = f" Did you mean {' or '.join(near)}?" if near else f" Its columns are {', '.join(columns)}."
            raise StatementError(f"Column name(s) `{name}` does not exist in {source.name}.{hint}", s.span)
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
                f"Expected type {show_type(column.type)} for field `{column.name}` but got {show_type(bound.type)}", e.span
            ) from None
        bound = _loosely(bound, column, e)
    try:
        return evaluate(bound, {}, is_strict=True)
    except NotSupported:
        raise
    except (ArithmeticError, ValueError, TypeError, KeyError) as error:
        raise StatementError(f"Failed to compute the value of `{column.name}`: {error}", e.span) from None


def _is_loose(bound: x.Expr, column: Column) -> bool:
    return can_convert(bound.type, column.type) and (bound.type == STRING or column.type in (STRING, TIMESTAMP))


def _loosely(bound: x.Expr, column: Column, e: ast.Expression) -> x.Expr:
    if isinstance(bound, x.Literal):
        try:
            return x.Literal(convert(bound.value, bound.type, column.type), column.type)
        except (ValueError, ArithmeticError) as error:
            raise StatementError(f"`{column.name}`: {error}", e.span) from None
    return implicit_cast(bound, column.type)
