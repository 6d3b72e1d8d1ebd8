"""Rules on types that every expression follows: implicit casts, common types, precision of decimals. Pure.

Numeric order is INTEGER < BIGINT < DECIMAL < DOUBLE. INTEGER counts as DECIMAL(10, 0), BIGINT as DECIMAL(19, 0).
The type of NULL is ANY until something gives it one.
"""

from __future__ import annotations

from logflume.log.schemas import BIGINT, DOUBLE, INTEGER, Column, DataType, Kind, array, decimal, map_of, struct

NUMERIC = (Kind.INTEGER, Kind.BIGINT, Kind.DECIMAL, Kind.DOUBLE)
TIME_KINDS = (Kind.DATE, Kind.TIME, Kind.TIMESTAMP)


def is_numeric(type: DataType) -> bool:
    return type.kind in NUMERIC


def as_decimal(type: DataType) -> DataType:
    """Return the DECIMAL that holds every value of an exact numeric type."""
    if type.kind is Kind.INTEGER:
        return decimal(10, 0)
    return decimal(19, 0) if type.kind is Kind.BIGINT else type


def wider_decimal(left: DataType, right: DataType) -> DataType:
    """Return the DECIMAL that holds every value of both."""
    a, b = as_decimal(left), as_decimal(right)
    scale = max(a.scale, b.scale)
    return decimal(max(a.precision - a.scale, b.precision - b.scale) + scale, scale)


def arithmetic_type(op: str, left: DataType, right: DataType) -> DataType:
    """Return the type of `left op right` for numeric operands.

    >>> str(arithmetic_type("+", decimal(4, 2), INTEGER))
    'DECIMAL(13, 2)'
    """
    kinds = {left.kind, right.kind}
    if Kind.DOUBLE in kinds:
        return DOUBLE
    if Kind.DECIMAL not in kinds:
        return BIGINT if Kind.BIGINT in kinds else INTEGER
    a, b = as_decimal(left), as_decimal(right)
    p1, s1, p2, s2 = a.precision, a.scale, b.precision, b.scale
    match op:
        case "+" | "-":
            return decimal(max(s1, s2) + max(p1 - s1, p2 - s2) + 1, max(s1, s2))
        case "*":
            return decimal(p1 + p2 + 1, s1 + s2)
        case "/":
            scale = max(6, s1 + p2 + 1)
            return decimal(p1 - s1 + s2 + scale, scale)
        case "%":
            return decimal(min(p1 - s1, p2 - s2) + max(s1, s2), max(s1, s2))
    raise AssertionError(op)


def can_cast_implicitly(source: DataType, target: DataType) -> bool:
    """Tell whether a value may be given where `target` is wanted.

    Equal, NULL, or numerically wider; time types and BYTES also from STRING.
    """
    if source == target or source.kind is Kind.ANY:
        return True
    if is_numeric(source) and is_numeric(target):
        if target.kind is Kind.DECIMAL:
            if source.kind is Kind.DOUBLE:
                return False
            exact = as_decimal(source)
            return exact.scale <= target.scale and exact.precision - exact.scale <= target.precision - target.scale
        return NUMERIC.index(source.kind) <= NUMERIC.index(target.kind)
    if source.kind is Kind.STRING:
        return target.kind in TIME_KINDS or target.kind is Kind.BYTES
    return False


def common_type(left: DataType, right: DataType) -> DataType | None:
    """Return the type both can become without loss; None if there is none. Structs unify to the superset of their fields."""
    if left == right or right.kind is Kind.ANY:
        return left
    if left.kind is Kind.ANY:
        return right
    if is_numeric(left) and is_numeric(right):
        if Kind.DOUBLE in (left.kind, right.kind):
            return DOUBLE
        if Kind.DECIMAL in (left.kind, right.kind):
            return wider_decimal(left, right)
        return BIGINT
    if left.kind is not right.kind:
        return None
    if left.kind is Kind.ARRAY and left.element and right.element:
        element = common_type(left.element, right.element)
        return None if element is None else array(element)
    if left.kind is Kind.MAP and left.element and right.element and left.key and right.key:
        key, value = common_type(left.key, right.key), common_type(left.element, right.element)
        return None if key is None or value is None else map_of(key, value)
    if left.kind is Kind.STRUCT:
        return _common_struct(left, right)
    return None


def _common_struct(left: DataType, right: DataType) -> DataType | None:
    theirs = {f.name: f.type for f in right.fields}
    fields: list[Column] = []
    for field in left.fields:
        type = common_type(field.type, theirs.pop(field.name, field.type))
        if type is None:
            return None
        fields.append(Column(field.name, type))
    return struct(*fields, *(Column(name, type) for name, type in theirs.items()))
