"""INSERT INTO ... VALUES: one row as a record, checked against the columns before anything is written."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from logflume.log import InvalidInput, near_matches
from logflume.log.interfaces import Log, Producer
from logflume.log.schemas import ANY, BIGINT, STRING, TIMESTAMP, Column, serde
from logflume.streams import expr as x
from logflume.streams.functions import can_convert, convert

from . import ast
from .binding.coercion import implicit_cast
from .binding.context import Context
from .binding.expressions import Binder
from .binding.scope import Scope
from .catalog import SourceInfo
from .errors import NotSupported, StatementError
from .evaluate import evaluate
from .types import show_type

WRITE_TIMEOUT_S = 60.0
_REFUSED = ("ROWPARTITION", "ROWOFFSET", "WINDOWSTART", "WINDOWEND")


@dataclass(frozen=True, slots=True)
class ValuesRecord:
    """A record to be written."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class RecordWriter:
    """Writes one record at a time, over a producer that is kept. Thread-safe; acknowledged on return."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._producer: Producer | None = None
        self._lock = threading.Lock()

    def write(self, record: ValuesRecord) -> None:
        """Write a record; after a failure the next one has a new producer, for this one may have lost its sequence."""
        with self._lock:
            if self._producer is None:
                self._producer = self._log.producer(linger_ms=0)
            producer = self._producer
        try:
            future = producer.send(record.topic, record.value, key=record.key, timestamp_ms=record.timestamp_ms)
            future.result(timeout=WRITE_TIMEOUT_S)
        except BaseException:
            with self._lock:
                if self._producer is producer:
                    self._producer = None
            producer.close()
            raise

    def close(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()


def values_record(s: ast.InsertValues, context: Context) -> ValuesRecord:
    """Return the record of one INSERT.

    Raises:
        StatementError: unknown source or column, a value that does not fit.
    """
    source = _target(s, context)
    columns = {c.name: c for c in source.columns()}
    names = s.columns or tuple(columns)
    _check_columns(s, source, names, columns)
    binder = Binder(Scope(()), context.library, context.catalog.types, "VALUES", fixed_now_ms=context.fixed_now_ms)
    values: dict[str, Any] = {}
    for name, e in zip(names, s.values, strict=True):
        column = Column(name, BIGINT) if name == "ROWTIME" else columns[name]
        values[name] = _value(e, column, binder)
    if source.is_table and all(values.get(c.name) is None for c in source.key):
        shown = ", ".join(c.name for c in source.key)
        raise StatementError(
            f"Failed to insert values into '{source.name}'. Value for primary key column(s) {shown} is required for tables",
            s.span,
        )
    key = None if all(values.get(c.name) is None for c in source.key) else tuple(values.get(c.name) for c in source.key)
    row = tuple(values.get(c.name) for c in source.value)
    now = context.fixed_now_ms if context.fixed_now_ms is not None else time.time_ns() // 1_000_000
    stamp = now if values.get("ROWTIME") is None else values["ROWTIME"]
    if stamp < 0:
        raise StatementError(f"ROWTIME must not be negative, found {stamp}", s.span)
    try:
        key_bytes = serde(source.key_format, source.key).encode(key)
        value_bytes = serde(source.value_format, source.value).encode(row)
    except InvalidInput as e:
        raise StatementError(f"Could not serialize the values: {e}", s.span) from None
    return ValuesRecord(source.topic, key_bytes, value_bytes, stamp)


def _target(s: ast.InsertValues, context: Context) -> SourceInfo:
    source = context.catalog.sources.get(s.target)
    if source is None:
        raise StatementError(
            f"Cannot insert values into an unknown stream/table: `{s.target}`{context.catalog.hint(s.target)}", s.span
        )
    if source.is_read_only:
        raise StatementError(f"Cannot insert values into read-only {source.kind.lower()}: {source.name}", s.span)
    if source.headers:
        raise StatementError(f"Cannot insert into {source.name} because it has header columns", s.span)
    if source.window is not None:
        raise StatementError(f"Cannot insert values into windowed stream or table {source.name}", s.span)
    return source


def _check_columns(s: ast.InsertValues, source: SourceInfo, names: tuple[str, ...], columns: dict[str, Column]) -> None:
    if not s.columns and len(s.values) == len(columns) - len(source.key) and not source.key:
        return
    if len(names) != len(s.values):
        raise StatementError(
            f"Expected {len(names)} values ({', '.join(names)}), found {len(s.values)}. Name the columns to give only "
            "some of them.",
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
