"""Implicit conversions: of literals (loosely, at planning) and of other expressions (only to wider types)."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from logflume.log.schemas import BIGINT, INTEGER, Column, DataType, Kind, decimal, struct
from logflume.sql import ast
from logflume.sql.errors import StatementError
from logflume.sql.types import show_type
from logflume.streams import expr as x
from logflume.streams.functions import NUMERIC, can_cast_implicitly, can_convert, common_type, convert, is_numeric
from logflume.streams.texts import to_text

_EXACT_CASTS = (Kind.DATE, Kind.TIME, Kind.TIMESTAMP)


def convert_literal(literal: x.Literal, type: DataType) -> x.Literal:
    """Return a literal as another type: numbers and booleans from text and back, text as times.

    Raises:
        StatementError: the literal does not read as that type.
    """
    if literal.type == type or literal.value is None:
        return x.Literal(literal.value, type)
    value: Any = literal.value
    if not can_convert(literal.type, type):
        raise StatementError(f"expected {show_type(type)}, found {to_text(value, literal.type)} ({show_type(literal.type)})")
    try:
        if literal.type.kind is Kind.STRING and (is_numeric(type) or type.kind is Kind.BOOLEAN):
            return x.Literal(_from_text(value, type), type)
        if type.kind is Kind.STRING:
            return x.Literal(to_text(value, literal.type), type)
        if is_numeric(literal.type) and is_numeric(type):
            return x.Literal(_widened(value, literal.type, type), type)
        return x.Literal(convert(value, literal.type, type), type)
    except (ValueError, ArithmeticError) as error:
        if type.kind in _EXACT_CASTS:
            raise StatementError(str(error)) from None
        raise StatementError(f'invalid input syntax for type {show_type(type)}: "{to_text(value, literal.type)}".') from None


def _widened(value: Any, source: DataType, target: DataType) -> Any:
    """Return a number as a wider type. Raises StatementError for a narrower one, or digits that it does not hold."""
    if NUMERIC.index(source.kind) > NUMERIC.index(target.kind):
        raise StatementError(f"expected {show_type(target)}, found {to_text(value, source)} ({show_type(source)})")
    found = convert(value, source, target)
    if target.kind is Kind.DECIMAL and found != value:
        raise StatementError(f"{to_text(value, source)} does not fit {show_type(target)} without rounding")
    return found


def _from_text(text: str, type: DataType) -> Any:
    if type.kind is Kind.BOOLEAN:
        folded = text.strip().lower()
        if folded and any(word.startswith(folded) for word in ("true", "yes")):
            return True
        if folded and any(word.startswith(folded) for word in ("false", "no")):
            return False
        raise ValueError(text)
    if type.kind in (Kind.INTEGER, Kind.BIGINT):
        number = Decimal(text.strip())
        if number != number.to_integral_value():
            raise ValueError(text)
        return convert(str(int(number)), DataType(Kind.STRING), type)
    return convert(text, DataType(Kind.STRING), type)


def implicit_cast(e: x.Expr, type: DataType) -> x.Expr:
    """Return an expression as a type it may be given for.

    Raises:
        StatementError: it may not.
    """
    if e.type == type:
        return e
    if isinstance(e, x.Literal):
        return convert_literal(e, type)
    if e.type.kind is Kind.ANY or type.kind is Kind.ANY:
        return e
    if can_cast_implicitly(e.type, type) or common_type(e.type, type) == type:
        return x.Cast(e, type)
    raise StatementError(f"expected {show_type(type)}, found {show_type(e.type)}")


def operator_mismatch(common: DataType, bound: x.Expr, e: ast.Expression, shown: Callable[[ast.Expression], str]) -> DataType:
    """Return the common type of a list so far and its next item.

    A literal follows the type found so far (text reads as a number where it can, a number is written as text).

    Raises:
        StatementError: they have none.
    """
    if bound.type == common:
        return common
    if isinstance(bound, x.Literal):
        if bound.type.kind is Kind.STRING and is_numeric(common):
            return _numeric_text(common, bound)
        if bound.type.kind is Kind.STRING and (common.kind is Kind.BOOLEAN or common.kind in _EXACT_CASTS):
            convert_literal(bound, common)
            return common
        if common.kind is Kind.STRING and (is_numeric(bound.type) or bound.type.kind is Kind.BOOLEAN):
            return common
    if isinstance(bound, x.MakeArray) and isinstance(e, ast.MakeArray) and common.kind is Kind.ARRAY and common.element:
        element = common.element
        for part, item in zip(bound.items, e.items, strict=True):
            element = operator_mismatch(element, part, item, shown)
        return DataType(Kind.ARRAY, element=element)
    if isinstance(bound, x.MakeMap) and isinstance(e, ast.MakeMap) and common.kind is Kind.MAP and common.element and common.key:
        key, value = common.key, common.element
        for (k, v), (k_item, v_item) in zip(bound.items, e.entries, strict=True):
            key, value = operator_mismatch(key, k, k_item, shown), operator_mismatch(value, v, v_item, shown)
        return DataType(Kind.MAP, key=key, element=value)
    if isinstance(bound, x.MakeStruct) and isinstance(e, ast.MakeStruct) and common.kind is Kind.STRUCT:
        types = {field.name: field.type for field in common.fields}
        for (name, part), (_, item) in zip(bound.items, e.entries, strict=True):
            types[name] = operator_mismatch(types[name], part, item, shown) if name in types else part.type
        return struct(*(Column(name, type) for name, type in types.items()))
    found = common_type(common, bound.type)
    if found is None:
        raise StatementError(
            f"operator does not exist: {show_type(common)} = {show_type(bound.type)} ({shown(e)})\nHint: You might "
            "need to add explicit type casts.",
            e.span,
        )
    return found


def _numeric_text(common: DataType, literal: x.Literal) -> DataType:
    """Numeric text widens the type as the number it stands for would: 10, 10.5, 2e1."""
    text = literal.value.strip()
    try:
        number = Decimal(text)
    except ArithmeticError:
        raise StatementError(f'invalid input syntax for type {show_type(common)}: "{literal.value}".') from None
    if not number.is_finite():
        return common
    if text.lstrip("+-").isdigit():
        found = INTEGER if -(2**31) <= number < 2**31 else BIGINT
    else:
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        scale = max(0, -exponent)
        found = decimal(max(len(digits) + max(exponent, 0), scale, 1), scale)
    return common_type(common, found) or common
