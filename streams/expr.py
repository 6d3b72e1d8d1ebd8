"""The expression tree: typed, frozen, and all that evaluation sees (architecture, D5 and D10). Data only.

What a user touches (`col.delay > 15`, SQL text) is bound to a schema and becomes this tree; from it come the exact form
(Python over rows, the meaning) and the form over columns. Every node knows its type.

Meaning, the same for the DSL and SQL:
- null: an arithmetic operator, a cast or a plain function of null is null; a comparison with null is False (two-valued, so
  NOT (a = null) is True); AND, OR and NOT of null are null unless the other side decides; IS_DISTINCT is null-safe.
- INTEGER and BIGINT arithmetic wraps in 32 / 64 bits. DIV and MOD on integers truncate towards zero (sign of the dividend);
  division by zero of INTEGER, BIGINT and DECIMAL is an error, of DOUBLE it follows IEEE 754. TRUE_DIV gives DOUBLE.
  FLOOR_DIV and FLOOR_MOD are Python's.
- an item of an ARRAY, MAP or STRUCT that fails, or an argument of a function that takes nulls, is null: the rest stays.
- any other error while evaluating gives null in a projection or aggregate argument and drops the record in a filter; it is always
  counted and logged with the record's topic, partition and offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from logflume.log.schemas import DataType


class Side(StrEnum):
    """Where a column lives: in the record's key, its value, or beside it (META)."""

    KEY = "key"
    VALUE = "value"
    META = "meta"


class Meta(StrEnum):
    """Names of META columns. All BIGINT but ROWPARTITION (INTEGER) and HEADERS (ARRAY<STRUCT<KEY STRING, VALUE BYTES>>)."""

    ROWTIME = "ROWTIME"
    ROWPARTITION = "ROWPARTITION"
    ROWOFFSET = "ROWOFFSET"
    WINDOWSTART = "WINDOWSTART"
    WINDOWEND = "WINDOWEND"
    HEADERS = "HEADERS"


WHOLE = "*"
"""Name of a ColumnRef that stands for all of a side as one object: the typed object, the bare value, or a named row."""

TABLE_PREFIX = "TABLE:"
"""Prefix of the names of the table's columns in a StreamTableJoin (`TABLE:*` is the table's row as an object)."""


class UnaryOp(StrEnum):
    NEG = "-"
    NOT = "NOT"
    IS_NULL = "IS NULL"
    IS_NOT_NULL = "IS NOT NULL"
    IS_NOT_TRUE = "IS NOT TRUE"


class BinaryOp(StrEnum):
    ADD = "+"
    SUB = "-"
    MUL = "*"
    DIV = "/"
    MOD = "%"
    TRUE_DIV = "true /"
    FLOOR_DIV = "//"
    FLOOR_MOD = "floor %"
    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    IS_DISTINCT = "IS DISTINCT FROM"
    AND = "AND"
    OR = "OR"


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """A column of the input edge, by side and name."""

    side: Side
    name: str
    type: DataType


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant of the Python type that `type` prescribes, or None."""

    value: Any
    type: DataType


@dataclass(frozen=True, slots=True)
class Unary:
    op: UnaryOp
    operand: Expr
    type: DataType


@dataclass(frozen=True, slots=True)
class Binary:
    op: BinaryOp
    left: Expr
    right: Expr
    type: DataType


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function as evaluation sees it; overloads are resolved before the tree is built.

    Attributes:
        name: for people and for Spark.
        impl: importable module-level callable (pickled by reference) over Python values; lambdas arrive as callables.
        handles_null: False: a null argument gives null without a call.
        kernel: name of an exact equivalent over columns in `streams.vectors.functions`, or None.
        columns: its form over columns (`streams.functions.scalar` says what it takes and gives), or None.
    """

    name: str
    impl: Callable[..., Any]
    handles_null: bool = False
    kernel: str | None = None
    columns: Callable[..., tuple[Any, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    function: Function
    args: tuple[Expr | Lambda, ...]
    type: DataType


@dataclass(frozen=True, slots=True)
class Cast:
    operand: Expr
    type: DataType


@dataclass(frozen=True, slots=True)
class Case:
    """Searched CASE, evaluated lazily: the first branch whose condition is True, else `default`."""

    branches: tuple[tuple[Expr, Expr], ...]
    default: Expr
    type: DataType


@dataclass(frozen=True, slots=True)
class FieldAccess:
    """`operand->name` of a STRUCT; null of null."""

    operand: Expr
    name: str
    type: DataType


@dataclass(frozen=True, slots=True)
class Index:
    """`operand[index]`: 1-based (negative from the end) for ARRAY, by key for MAP; out of range or missing is null."""

    operand: Expr
    index: Expr
    type: DataType


@dataclass(frozen=True, slots=True)
class MakeArray:
    items: tuple[Expr, ...]
    type: DataType


@dataclass(frozen=True, slots=True)
class MakeMap:
    items: tuple[tuple[Expr, Expr], ...]
    type: DataType


@dataclass(frozen=True, slots=True)
class MakeStruct:
    items: tuple[tuple[str, Expr], ...]
    type: DataType


@dataclass(frozen=True, slots=True)
class Lambda:
    """An anonymous function, legal only as an argument of a Call; its parameters are LambdaParam nodes in the body."""

    params: tuple[str, ...]
    body: Expr


@dataclass(frozen=True, slots=True)
class LambdaParam:
    name: str
    type: DataType


@dataclass(frozen=True, slots=True)
class PyCall:
    """A plain Python callable over the whole row of one side, or over chosen columns: opaque, by its exact form only.

    `args` empty: called with the value object of the edge (a typed object when the source declared a class), else with the
    values of `args` in order. Nulls are passed on, a null value object as None.
    """

    function: Callable[..., Any]
    args: tuple[Expr, ...]
    type: DataType


Expr = (
    ColumnRef
    | Literal
    | Unary
    | Binary
    | Call
    | Cast
    | Case
    | FieldAccess
    | Index
    | MakeArray
    | MakeMap
    | MakeStruct
    | LambdaParam
    | PyCall
)


def children(expr: Expr | Lambda) -> tuple[Expr | Lambda, ...]:
    """Return the direct operands of a node, in order of evaluation."""
    match expr:
        case Unary() | Cast() | FieldAccess():
            return (expr.operand,)
        case Binary():
            return (expr.left, expr.right)
        case Call() | PyCall():
            return expr.args
        case Case():
            return (*(part for branch in expr.branches for part in branch), expr.default)
        case Index():
            return (expr.operand, expr.index)
        case MakeArray():
            return expr.items
        case MakeMap():
            return tuple(part for item in expr.items for part in item)
        case MakeStruct():
            return tuple(value for _, value in expr.items)
        case Lambda():
            return (expr.body,)
    return ()


def walk(expr: Expr | Lambda) -> Iterator[Expr | Lambda]:
    """Yield the node and everything below it, parents first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def columns_used(expr: Expr) -> set[tuple[Side, str]]:
    """Return the columns that an expression reads, as (side, name); WHOLE where it reads a row as an object."""
    used: set[tuple[Side, str]] = set()
    for node in walk(expr):
        if isinstance(node, ColumnRef):
            used.add((node.side, node.name))
        elif isinstance(node, PyCall) and not node.args:
            used.add((Side.VALUE, WHOLE))
    return used
