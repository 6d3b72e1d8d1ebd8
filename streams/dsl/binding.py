"""Deferred values + a schema -> the typed tree: looks columns up, works types out, and refuses what cannot be meant."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from logflume.log import InvalidInput, UnknownName
from logflume.log.schemas import (
    ANY,
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INTEGER,
    STRING,
    TIME,
    TIMESTAMP,
    Column,
    DataType,
    Kind,
    columns_of,
    decimal,
    is_object_class,
)

from .. import expr as e
from ..graph import Schema, is_bare
from . import fields as f
from .callables import where
from .calls import bind_call

_NUMBERS = (Kind.INTEGER, Kind.BIGINT, Kind.DECIMAL, Kind.DOUBLE)
_INSTANTS = (Kind.TIMESTAMP, Kind.DATE, Kind.TIME)
_COMPARISONS = (e.BinaryOp.EQ, e.BinaryOp.NE, e.BinaryOp.LT, e.BinaryOp.LE, e.BinaryOp.GT, e.BinaryOp.GE, e.BinaryOp.IS_DISTINCT)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PYTHON_TYPES: Mapping[Any, DataType] = {bool: BOOLEAN, int: BIGINT, float: DOUBLE, str: STRING, bytes: BYTES}


@dataclass(frozen=True, slots=True)
class Scope:
    """Where names are looked up: the value columns first, then the key; with `table`, those of a join's table.

    Attributes:
        what: names the edge in errors.
        lambdas: what the lambdas around are given, by name.
    """

    schema: Schema
    what: str
    table: Schema | None = None
    extra: Mapping[str, DataType] = field(default_factory=dict)
    lambdas: Mapping[str, DataType] = field(default_factory=dict)

    def find(self, name: str, side: str) -> e.Expr:
        """Return the column of a name.

        Raises:
            UnknownName: there is none; lists near matches.
        """
        schema, prefix = (self.schema, "") if side == "" else (self.table, e.TABLE_PREFIX)
        if schema is None:
            raise InvalidInput(f"`table.{name}` is only known in a join")
        for column in schema.value:
            if column.name == name and not is_bare(schema):
                return e.ColumnRef(e.Side.VALUE, prefix + name, column.type)
        if not prefix:
            for column in schema.key:
                if column.name == name:
                    return e.ColumnRef(e.Side.KEY, name, column.type)
        if is_bare(schema):
            return self._member(schema, prefix, name)
        known = [c.name for c in (*schema.value, *schema.key)]
        raise _unknown(self.what, name, known)

    def _member(self, schema: Schema, prefix: str, name: str) -> e.Expr:
        """A member of a bare object: of its class where that is known, else of whatever it is at run time."""
        whole = e.ColumnRef(e.Side.VALUE, prefix + schema.value[0].name, ANY)
        if schema.value_class is not None and is_object_class(schema.value_class):
            types = {c.name: c.type for c in columns_of(schema.value_class)}
            if name not in types:
                raise UnknownName(f"field of {schema.value_class.__name__}", name, types)
            return e.FieldAccess(whole, name, types[name])
        return e.FieldAccess(whole, name, ANY)


def _unknown(what: str, name: str, known: list[str]) -> UnknownName:
    """Return the error for an unknown column; without a near match it lists what there is."""
    error = UnknownName(f"column of {what}", name, known)
    if not error.near and len(known) > error.listed_max:
        error.args = (f"{error.args[0]}; it has {', '.join(known)}",)
    return error


def bind(value: Any, scope: Scope) -> e.Expr:
    """Return the typed tree of a deferred value (or constant).

    Raises:
        UnknownName: a column that is not there.
        InvalidInput: types that do not go together; the message shows the expression and both types.
    """
    value = f.lift(value)
    match value:
        case f.Field():
            return scope.find(value.name, value.side)
        case f.MetaField():
            return _meta(value, scope)
        case f.Constant():
            return constant(value.value)
        case f.Unary():
            return _unary(value, scope)
        case f.Binary():
            return _binary(value, scope)
        case f.Item():
            return _item(value, scope)
        case f.Converted():
            return e.Cast(bind(value.operand, scope), _as_type(value.type))
        case f.Called():
            return bind_call(value, scope, bind)
        case f.Param():
            return e.LambdaParam(value.name, scope.lambdas[value.name])
        case f.Choice():
            return _choice(value, scope)
        case f.Applied():
            return e.PyCall(value.function, tuple(bind(arg, scope) for arg in value.args), _returns(value.function))
    raise InvalidInput(f"expected a column expression, found {value!r}")


def constant(value: Any) -> e.Literal:
    """Return a constant with its column type."""
    if value is None:
        return e.Literal(None, ANY)
    if isinstance(value, Decimal):
        scale = max(0, -int(value.as_tuple().exponent))
        return e.Literal(value, decimal(max(len(value.as_tuple().digits), scale, 1), scale))
    if isinstance(value, datetime.date | datetime.time):
        return _moment(value)
    if callable(value):
        raise InvalidInput(f"{where(value)} stands where a column expression is expected: lf.apply(function, lf.col.x)")
    type = _PYTHON_TYPES.get(value.__class__, ANY)
    if type is BIGINT and not -(2**63) <= value < 2**63:
        raise InvalidInput(f"{value} does not fit in 64 bits")
    return e.Literal(value, type)


def _moment(value: datetime.date | datetime.time) -> e.Literal:
    """Return a date, a time of day, or a date with a time (UTC unless it has a zone) as a constant."""
    if isinstance(value, datetime.time):
        return e.Literal(((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000, TIME)
    if not isinstance(value, datetime.datetime):
        return e.Literal(value.toordinal() - _EPOCH.toordinal(), DATE)
    aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
    return e.Literal((aware - _EPOCH) // datetime.timedelta(milliseconds=1), TIMESTAMP)


def _as_type(type: Any) -> DataType:
    if isinstance(type, DataType):
        return type
    if type in _PYTHON_TYPES:
        return _PYTHON_TYPES[type]
    raise InvalidInput(f"cast() takes a column type or int, float, str, bool, bytes; found {type!r}")


def _returns(function: Any) -> DataType:
    from .callables import returned_type

    return _PYTHON_TYPES.get(returned_type(function), ANY)


def _meta(value: f.MetaField, scope: Scope) -> e.Expr:
    if value.meta in (e.Meta.WINDOWSTART, e.Meta.WINDOWEND) and scope.schema.window is None:
        raise InvalidInput(f"{value!r} is only known behind a windowed aggregate; {scope.what} has no window")
    return e.ColumnRef(e.Side.META, value.meta.value, INTEGER if value.meta is e.Meta.ROWPARTITION else BIGINT)


def _unary(value: f.Unary, scope: Scope) -> e.Expr:
    operand = bind(value.operand, scope)
    match value.op:
        case e.UnaryOp.NEG:
            if operand.type.kind not in (*_NUMBERS, Kind.ANY):
                raise InvalidInput(f"`{value!r}` needs a number, found {operand.type}")
            return e.Unary(value.op, operand, operand.type)
        case e.UnaryOp.NOT:
            _expect_boolean(operand, value.operand)
    return e.Unary(value.op, operand, BOOLEAN)


def _expect_boolean(expr: e.Expr, text: f.Value) -> None:
    if expr.type.kind not in (Kind.BOOLEAN, Kind.ANY):
        raise InvalidInput(f"`{text!r}` is {expr.type}, expected a condition (BOOLEAN): compare it with something")


def _binary(value: f.Binary, scope: Scope) -> e.Expr:
    left, right = bind(value.left, scope), bind(value.right, scope)
    if value.op in (e.BinaryOp.AND, e.BinaryOp.OR):
        _expect_boolean(left, value.left)
        _expect_boolean(right, value.right)
        return e.Binary(value.op, left, right, BOOLEAN)
    if value.op in _COMPARISONS:
        if _is_null(left) or _is_null(right):
            if value.op is not e.BinaryOp.IS_DISTINCT:
                raise InvalidInput(f"`{value!r}` is never true: use is_null() or is_not_null()")
        elif not _is_comparable(left.type, right.type):
            raise InvalidInput(f"`{value!r}` compares {left.type} with {right.type}: cast one of them")
        return e.Binary(value.op, left, right, BOOLEAN)
    return e.Binary(value.op, left, right, _arithmetic_type(value, left.type, right.type))


def _is_null(expr: e.Expr) -> bool:
    return isinstance(expr, e.Literal) and expr.value is None


def _is_comparable(left: DataType, right: DataType) -> bool:
    if Kind.ANY in (left.kind, right.kind) or left.kind is right.kind:
        return True
    numbers = (*_NUMBERS, Kind.TIMESTAMP)
    return left.kind in numbers and right.kind in numbers


def _arithmetic_type(value: f.Binary, left: DataType, right: DataType) -> DataType:
    op = value.op
    if Kind.ANY in (left.kind, right.kind):
        return ANY
    if left.kind in _NUMBERS and right.kind in _NUMBERS:
        if op is e.BinaryOp.TRUE_DIV or Kind.DOUBLE in (left.kind, right.kind):
            return DOUBLE
        if Kind.DECIMAL in (left.kind, right.kind):
            return decimal_result(op, left, right)
        return BIGINT if Kind.BIGINT in (left.kind, right.kind) else INTEGER
    if op is e.BinaryOp.ADD and left.kind is right.kind is Kind.STRING:
        return STRING
    if op in (e.BinaryOp.ADD, e.BinaryOp.SUB) and left.kind is Kind.TIMESTAMP and right.kind in (Kind.INTEGER, Kind.BIGINT):
        return left
    if op is e.BinaryOp.SUB and left.kind is right.kind and left.kind in _INSTANTS:
        return BIGINT
    raise InvalidInput(
        f"`{value!r}` has no meaning for {left.kind} and {right.kind} ({left} {op.value} {right}): cast one of them"
    )


def decimal_result(op: e.BinaryOp, left: DataType, right: DataType) -> DataType:
    """Return the type of decimal arithmetic (ksqlDB's rules), at most 38 digits; integers count as DECIMAL(10 or 19, 0)."""
    p1, s1 = _digits(left)
    p2, s2 = _digits(right)
    match op:
        case e.BinaryOp.ADD | e.BinaryOp.SUB:
            scale = max(s1, s2)
            precision = scale + max(p1 - s1, p2 - s2) + 1
        case e.BinaryOp.MUL:
            precision, scale = p1 + p2 + 1, s1 + s2
        case e.BinaryOp.FLOOR_DIV:
            precision, scale = p1 - s1 + s2 + 1, 0
        case _:
            scale = max(s1, s2)
            precision = scale + min(p1 - s1, p2 - s2)
    return decimal(max(1, min(38, precision)), min(38, scale))


def _digits(type: DataType) -> tuple[int, int]:
    return {Kind.INTEGER: (10, 0), Kind.BIGINT: (19, 0)}.get(type.kind, (type.precision, type.scale))


def _item(value: f.Item, scope: Scope) -> e.Expr:
    operand, key = bind(value.operand, scope), bind(value.key, scope)
    match operand.type.kind:
        case Kind.STRUCT:
            types = {c.name: c.type for c in operand.type.fields}
            name = key.value if isinstance(key, e.Literal) else None
            if name not in types:
                raise UnknownName(f"field of `{value.operand!r}`", str(name), types)
            return e.FieldAccess(operand, str(name), types[name])
        case Kind.MAP:
            assert operand.type.element is not None
            return e.Index(operand, key, operand.type.element)
        case Kind.ARRAY:
            assert operand.type.element is not None
            return e.Index(operand, _one_based(key), operand.type.element)
        case Kind.ANY:
            return e.Index(operand, key, ANY)
    raise InvalidInput(f"`{value.operand!r}` is {operand.type}: it has no items")


def _one_based(index: e.Expr) -> e.Expr:
    """Python counts from 0, the tree from 1; negative positions count from the end in both."""
    if isinstance(index, e.Literal) and isinstance(index.value, int):
        return e.Literal(index.value + 1 if index.value >= 0 else index.value, BIGINT)
    one = e.Binary(e.BinaryOp.ADD, index, e.Literal(1, BIGINT), BIGINT)
    is_from_start = e.Binary(e.BinaryOp.GE, index, e.Literal(0, BIGINT), BOOLEAN)
    return e.Case(((is_from_start, one),), index, BIGINT)


def _choice(value: f.Choice, scope: Scope) -> e.Expr:
    branches = []
    for condition, result in value.branches:
        test = bind(condition, scope)
        _expect_boolean(test, condition)
        branches.append((test, bind(result, scope)))
    default = bind(value.default, scope)
    results = [result for _, result in branches] + [default]
    type = common_type([r.type for r in results if not _is_null(r)], value)
    return e.Case(tuple((test, _to(result, type)) for test, result in branches), _to(default, type), type)


def _to(expr: e.Expr, type: DataType) -> e.Expr:
    if _is_null(expr):
        return e.Literal(None, type)
    return expr if expr.type == type or type.kind is Kind.ANY else e.Cast(expr, type)


def common_type(types: list[DataType], text: object) -> DataType:
    """Return the type that holds all of these: the same, or the widest number."""
    if not types or any(t.kind is Kind.ANY for t in types):
        return ANY
    if all(t == types[0] for t in types):
        return types[0]
    if all(t.kind in _NUMBERS for t in types):
        if any(t.kind is Kind.DOUBLE for t in types):
            return DOUBLE
        if any(t.kind is Kind.DECIMAL for t in types):
            scale = max(_digits(t)[1] for t in types)
            return decimal(min(38, scale + max(_digits(t)[0] - _digits(t)[1] for t in types)), scale)
        return BIGINT
    raise InvalidInput(f"`{text!r}` gives {' or '.join(sorted({str(t) for t in types}))}: cast to one type")


def column(name: str, expr: e.Expr) -> Column:
    """Return the column that an expression makes."""
    return Column(name, expr.type)
