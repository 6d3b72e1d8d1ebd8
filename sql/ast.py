"""The abstract syntax tree: what a statement says, before any name is looked up. Data only.

Every node carries a `Span` of the script it came from, so that any later stage can point at the cause; spans do not take part in
equality, so that `a+b` in SELECT and in GROUP BY are equal. Names are already folded: unquoted ones upper-case, quoted ones as
written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any


@dataclass(frozen=True, slots=True)
class Span:
    """Characters start..stop of the statement's text."""

    start: int
    stop: int


NOWHERE = Span(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Common to all nodes: where it stands in the text."""

    span: Span = field(default=NOWHERE, compare=False, repr=False)


# ------------------------------------------------------------------------------------------------ expressions


@dataclass(frozen=True, slots=True)
class Name(Node):
    """A column, or source.column. A bare name may also turn out to be a time unit or a lambda parameter."""

    name: str
    source: str | None = None


@dataclass(frozen=True, slots=True)
class StringLiteral(Node):
    value: str


@dataclass(frozen=True, slots=True)
class IntegerLiteral(Node):
    """32-bit if it fits, else 64-bit; beyond that the parser refuses."""

    value: int


@dataclass(frozen=True, slots=True)
class DecimalLiteral(Node):
    """`text` keeps the digits as written: they give precision and scale."""

    text: str

    @property
    def value(self) -> Decimal:
        return Decimal(self.text)


@dataclass(frozen=True, slots=True)
class DoubleLiteral(Node):
    value: float


@dataclass(frozen=True, slots=True)
class BooleanLiteral(Node):
    value: bool


@dataclass(frozen=True, slots=True)
class NullLiteral(Node):
    pass


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """op: '-', '+', 'NOT', 'IS NULL', 'IS NOT NULL'."""

    op: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """op: + - * / % || = <> < <= > >= AND OR 'IS DISTINCT FROM' 'IS NOT DISTINCT FROM'."""

    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Between(Node):
    operand: Expression
    low: Expression
    high: Expression
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class InList(Node):
    operand: Expression
    items: tuple[Expression, ...]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class Like(Node):
    operand: Expression
    pattern: Expression
    escape: str | None = None
    is_negated: bool = False
    ignores_case: bool = False


@dataclass(frozen=True, slots=True)
class When(Node):
    condition: Expression
    result: Expression


@dataclass(frozen=True, slots=True)
class SimpleCase(Node):
    operand: Expression
    whens: tuple[When, ...]
    default: Expression | None


@dataclass(frozen=True, slots=True)
class SearchedCase(Node):
    whens: tuple[When, ...]
    default: Expression | None


@dataclass(frozen=True, slots=True)
class Cast(Node):
    operand: Expression
    type: TypeName


@dataclass(frozen=True, slots=True)
class MakeArray(Node):
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class MakeMap(Node):
    entries: tuple[tuple[Expression, Expression], ...]


@dataclass(frozen=True, slots=True)
class MakeStruct(Node):
    entries: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class Subscript(Node):
    operand: Expression
    index: Expression


@dataclass(frozen=True, slots=True)
class Dereference(Node):
    operand: Expression
    name: str


@dataclass(frozen=True, slots=True)
class Call(Node):
    """`is_star`: f(*). `is_distinct`: f(DISTINCT ...)."""

    name: str
    args: tuple[Expression, ...]
    is_star: bool = False
    is_distinct: bool = False


@dataclass(frozen=True, slots=True)
class Lambda(Node):
    params: tuple[str, ...]
    body: Expression


@dataclass(frozen=True, slots=True)
class Over(Node):
    """A function over rows of the result: those with the same `partition_by`, in the order of `order_by`."""

    call: Call
    partition_by: tuple[Expression, ...] = ()
    order_by: tuple[OrderItem, ...] = ()


@dataclass(frozen=True, slots=True)
class AtTimeZone(Node):
    operand: Expression
    zone: str


Expression = (
    Name
    | StringLiteral
    | IntegerLiteral
    | DecimalLiteral
    | DoubleLiteral
    | BooleanLiteral
    | NullLiteral
    | Unary
    | Binary
    | Between
    | InList
    | Like
    | SimpleCase
    | SearchedCase
    | Cast
    | MakeArray
    | MakeMap
    | MakeStruct
    | Subscript
    | Dereference
    | Call
    | Lambda
    | Over
    | AtTimeZone
)


# ------------------------------------------------------------------------------------------------ types


@dataclass(frozen=True, slots=True)
class TypeName(Node):
    """A type as written: name with parameters (numbers), element types (ARRAY, MAP) or fields (STRUCT)."""

    name: str
    parameters: tuple[str, ...] = ()
    elements: tuple[TypeName, ...] = ()
    fields: tuple[tuple[str, TypeName], ...] = ()


# ------------------------------------------------------------------------------------------------ queries


@dataclass(frozen=True, slots=True)
class SelectItem(Node):
    """`kind`: 'expr', 'all' (*), 'source' (s.*, `source`) or 'struct' (e->*)."""

    kind: str
    expression: Expression | None = None
    alias: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Duration(Node):
    amount: int
    unit: str
    ms: int


@dataclass(frozen=True, slots=True)
class AsOf(Node):
    """A topic as it was: up to a time (text, or ms since 1970), or before an offset of each partition."""

    time: str | int | None = None
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceRef(Node):
    """A stream or table by name, or (`query`) what a query gives, which has the alias for its name."""

    name: str
    alias: str
    query: Query | None = None
    as_of: AsOf | None = None


@dataclass(frozen=True, slots=True)
class Within(Node):
    before: Duration
    after: Duration
    grace: Duration | None


@dataclass(frozen=True, slots=True)
class Join(Node):
    """kind: INNER, LEFT, RIGHT or FULL."""

    kind: str
    source: SourceRef
    within: Within | None
    on: Expression


@dataclass(frozen=True, slots=True)
class Window(Node):
    """kind: TUMBLING, HOPPING or SESSION (size = gap)."""

    kind: str
    size: Duration
    advance: Duration | None = None
    retention: Duration | None = None
    grace: Duration | None = None


@dataclass(frozen=True, slots=True)
class CalendarWindow(Node):
    """The days, weeks, months, quarters or years of a time zone."""

    unit: str
    zone: str
    retention: Duration | None = None
    grace: Duration | None = None


@dataclass(frozen=True, slots=True)
class OrderItem(Node):
    """One item of ORDER BY; nulls stand last unless `has_nulls_first`."""

    expression: Expression
    is_descending: bool = False
    has_nulls_first: bool = False


SNAPSHOT = "SNAPSHOT, CHANGES"
"""How a table is followed that is first given as it is."""


@dataclass(frozen=True, slots=True)
class Query(Node):
    """emit: None, 'CHANGES', 'FINAL', SNAPSHOT. `group_by`, `partition_by`: None without. `unions`: behind UNION ALL."""

    select: tuple[SelectItem, ...]
    source: SourceRef
    joins: tuple[Join, ...] = ()
    window: Window | CalendarWindow | None = None
    where: Expression | None = None
    group_by: tuple[Expression, ...] | None = None
    partition_by: tuple[Expression, ...] | None = None
    having: Expression | None = None
    emit: str | None = None
    limit: int | None = None
    unions: tuple[Query, ...] = ()
    clauses: tuple[tuple[str, Span], ...] = field(default=(), compare=False, repr=False)
    is_distinct: bool = False
    order_by: tuple[OrderItem, ...] = ()
    offset: int = 0
    qualify: Expression | None = None

    def clause_span(self, clause: str) -> Span:
        """Return where a clause ('WHERE', 'GROUP BY', ...) stands; the query's own span without it."""
        return dict(self.clauses).get(clause, self.span)


# ------------------------------------------------------------------------------------------------ statements


@dataclass(frozen=True, slots=True)
class QueryStatement(Node):
    query: Query


@dataclass(frozen=True, slots=True)
class ColumnElement(Node):
    """constraint: None, 'PRIMARY KEY', 'KEY', 'HEADERS' or 'HEADER' (with `header_key`)."""

    name: str
    type: TypeName
    constraint: str | None = None
    header_key: str | None = None


@dataclass(frozen=True, slots=True)
class Property(Node):
    """One entry of WITH (...): name upper-cased, value a Python str, int, Decimal, float, bool or None.

    `written`: the name of an option that may have lower-case letters; of an unquoted one, in lower case.
    """

    name: str
    value: Any
    written: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CreateSource(Node):
    name: str
    is_table: bool
    elements: tuple[ColumnElement, ...]
    properties: tuple[Property, ...]
    or_replace: bool = False
    if_not_exists: bool = False
    is_source: bool = False


@dataclass(frozen=True, slots=True)
class CreateAs(Node):
    name: str
    is_table: bool
    query: Query
    properties: tuple[Property, ...]
    or_replace: bool = False
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class InsertQuery(Node):
    target: str
    query: Query
    properties: tuple[Property, ...]


@dataclass(frozen=True, slots=True)
class InsertValues(Node):
    """`columns` empty: all columns of the target in order."""

    target: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Expression, ...], ...]


@dataclass(frozen=True, slots=True)
class Drop(Node):
    name: str
    is_table: bool
    if_exists: bool
    delete_topic: bool


@dataclass(frozen=True, slots=True)
class CreateConnector(Node):
    name: str
    is_source: bool
    properties: tuple[Property, ...]
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropConnector(Node):
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterSource(Node):
    name: str
    is_table: bool
    columns: tuple[tuple[str, TypeName], ...]


@dataclass(frozen=True, slots=True)
class CreateType(Node):
    name: str
    type: TypeName
    if_not_exists: bool


@dataclass(frozen=True, slots=True)
class DropType(Node):
    name: str
    if_exists: bool


@dataclass(frozen=True, slots=True)
class Show(Node):
    """what: PROPERTIES, TOPICS, STREAMS, TABLES, FUNCTIONS, TYPES, VARIABLES, QUERIES, CONNECTORS, SOURCE CONNECTORS,
    SINK CONNECTORS, CONNECTOR PLUGINS."""

    what: str
    is_extended: bool = False
    is_all: bool = False


@dataclass(frozen=True, slots=True)
class Describe(Node):
    """what: SOURCE, STREAMS, TABLES, FUNCTION or CONNECTOR."""

    what: str
    name: str = ""
    is_extended: bool = False


@dataclass(frozen=True, slots=True)
class Explain(Node):
    """Either a statement or the id of a running query."""

    statement: Statement | None
    query_id: str | None = None
    is_analyzed: bool = False


@dataclass(frozen=True, slots=True)
class Print(Node):
    topic: str
    from_beginning: bool = False
    interval: int = 1
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class QueryControl(Node):
    """verb: TERMINATE, PAUSE or RESUME; query_id None: ALL."""

    verb: str
    query_id: str | None


@dataclass(frozen=True, slots=True)
class SetProperty(Node):
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class AlterSystem(Node):
    """A property for all sessions that do not set it."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class UnsetProperty(Node):
    name: str


@dataclass(frozen=True, slots=True)
class Define(Node):
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Undefine(Node):
    name: str


@dataclass(frozen=True, slots=True)
class RunScript(Node):
    path: str


@dataclass(frozen=True, slots=True)
class AssertTopic(Node):
    """`is_absent`: NOT EXISTS."""

    topic: str
    properties: tuple[Property, ...]
    is_absent: bool = False
    timeout: Duration | None = None


@dataclass(frozen=True, slots=True)
class AssertSchema(Node):
    """By subject, id, or both. `is_absent`: NOT EXISTS."""

    subject: str | None
    schema_id: int | None
    is_absent: bool = False
    timeout: Duration | None = None


@dataclass(frozen=True, slots=True)
class AssertInTest(Node):
    """An assertion that only tools know which run test scripts. `what`: as it begins."""

    what: str


Statement = (
    QueryStatement
    | CreateSource
    | CreateAs
    | InsertQuery
    | InsertValues
    | Drop
    | AlterSource
    | CreateType
    | DropType
    | CreateConnector
    | DropConnector
    | Show
    | Describe
    | Explain
    | Print
    | QueryControl
    | AlterSystem
    | SetProperty
    | UnsetProperty
    | Define
    | Undefine
    | RunScript
    | AssertTopic
    | AssertSchema
    | AssertInTest
)
