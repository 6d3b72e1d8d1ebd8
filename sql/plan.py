"""The logical plan: what a query does, bound and typed, before it is decided how. Data only.

A chain of operators from sources to a result; every operator knows the columns it puts out. Expressions read columns of the
operator's input by side and name (for a join: `TABLE:name` for the columns of its right side).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from logflume.log.schemas import Column, FormatSpec
from logflume.streams.expr import Expr
from logflume.streams.graph import Aggregation, CalendarWindow, Emit, JoinKind, SessionWindow, TimeWindow

from .catalog import SourceInfo

Windows = TimeWindow | SessionWindow | CalendarWindow
NamedExpr = tuple[str, Expr]


class ResultKind(StrEnum):
    """What a query gives: records that stand for themselves, or changes of rows by key."""

    STREAM = "STREAM"
    TABLE = "TABLE"


@dataclass(frozen=True, slots=True)
class Scan:
    """Reads a source. `timestamp`: the expression of its event time; `needs_time`: a record without one stops the query."""

    source: SourceInfo
    timestamp: Expr | None = None
    needs_time: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """Keeps records for which the predicate is true. `name` tells WHERE from HAVING."""

    input: Operator
    predicate: Expr
    name: str = "WHERE"


@dataclass(frozen=True, slots=True)
class Rekey:
    """Gives records a new key."""

    input: Operator
    keys: tuple[NamedExpr, ...]
    name: str = "GROUP-BY"


@dataclass(frozen=True, slots=True)
class Select:
    """New value columns."""

    input: Operator
    columns: tuple[NamedExpr, ...]
    name: str = "SELECT"


@dataclass(frozen=True, slots=True)
class Explode:
    """Columns of which some give a list: one record for each item, shorter lists padded. (name, expression, is list)."""

    input: Operator
    columns: tuple[tuple[str, Expr, bool], ...]


@dataclass(frozen=True, slots=True)
class Regroup:
    """The rows of a table by another key, on their way to an aggregate, which takes out what a change replaces."""

    input: Operator
    keys: tuple[NamedExpr, ...]
    columns: tuple[NamedExpr, ...]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Aggregates by key, and by window."""

    input: Operator
    aggregations: tuple[Aggregation, ...]
    window: Windows | None
    emit: Emit


@dataclass(frozen=True, slots=True)
class JoinTable:
    """Looks each stream record's key up in a table."""

    stream: Operator
    table: Operator
    kind: JoinKind
    columns: tuple[NamedExpr, ...]


@dataclass(frozen=True, slots=True)
class JoinStreams:
    """Pairs records of one key, the right's times in [left - before, left + after].

    `grace_ms` None: what finds no partner leaves at once, padded, even if a partner comes later; else when its window has closed.
    """

    left: Operator
    right: Operator
    kind: JoinKind
    columns: tuple[NamedExpr, ...]
    before_ms: int
    after_ms: int
    grace_ms: int | None


@dataclass(frozen=True, slots=True)
class JoinTables:
    """Pairs the rows of two tables of one key."""

    left: Operator
    right: Operator
    kind: JoinKind
    columns: tuple[NamedExpr, ...]


@dataclass(frozen=True, slots=True)
class JoinForeign:
    """Pairs each row of a table with the row of another that it names by `key`, an expression over the left row."""

    left: Operator
    right: Operator
    kind: JoinKind
    columns: tuple[NamedExpr, ...]
    key: Expr


@dataclass(frozen=True, slots=True)
class Union:
    """The records of several streams of the same columns."""

    parts: tuple[Operator, ...]


Operator = (
    Union | Scan | Filter | Rekey | Select | Explode | Regroup | Aggregate | JoinTable | JoinStreams | JoinTables | JoinForeign
)


@dataclass(frozen=True, slots=True)
class Output:
    """Where the result of a persistent query goes. `key` names the columns of the encoded key."""

    topic: str
    key: tuple[Column, ...]
    value: tuple[Column, ...]
    key_format: FormatSpec
    value_format: FormatSpec
    timestamp: Expr | None = None
    partitions: int | None = None
    topic_configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A planned query.

    Attributes:
        key, value: columns of the result.
        sources: what it reads, by name.
        window: of the result's key.
        output: None for a query that is only watched.
    """

    id: str
    root: Operator
    kind: ResultKind
    key: tuple[Column, ...]
    value: tuple[Column, ...]
    sources: tuple[str, ...]
    window: Windows | None = None
    output: Output | None = None
    limit: int | None = None


def inputs(operator: Operator) -> tuple[Operator, ...]:
    """Return what an operator reads."""
    if isinstance(operator, Union):
        return operator.parts
    return tuple(getattr(operator, name) for name in ("input", "stream", "table", "left", "right") if hasattr(operator, name))


def operators(root: Operator) -> Iterator[Operator]:
    """Yield all operators, inputs first."""
    for each in inputs(root):
        yield from operators(each)
    yield root


def key_columns(operator: Operator) -> tuple[Column, ...]:
    """Return the columns of the key behind an operator, as its expressions name them."""
    match operator:
        case Scan(source):
            return source.key
        case Rekey(_, keys) | Regroup(_, keys):
            return tuple(Column(name, e.type) for name, e in keys)
    return key_columns(inputs(operator)[0])
