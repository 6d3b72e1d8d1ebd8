"""Casts and decimal arithmetic, by example: what goes in, what type is asked for, what comes out."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from logflume.log import InvalidInput
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
    array,
    decimal,
    map_of,
    struct,
)
from logflume.streams.functions import make_cast
from logflume.streams.functions.arithmetic import decimal_operator

MONEY = decimal(6, 2)


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (1.9, DOUBLE, INTEGER, 1),
        (-1.9, DOUBLE, BIGINT, -1),
        (1e30, DOUBLE, BIGINT, 2**63 - 1),
        (-1e30, DOUBLE, INTEGER, -(2**31)),
        (math.nan, DOUBLE, INTEGER, 0),
        (2**31, BIGINT, INTEGER, -(2**31)),
        (Decimal("-1.99"), MONEY, INTEGER, -1),
        (1.005, DOUBLE, MONEY, Decimal("1.01")),
        (Decimal("2.345"), decimal(6, 3), MONEY, Decimal("2.35")),
        (7, INTEGER, MONEY, Decimal("7.00")),
        ("12", STRING, INTEGER, 12),
        (" -3 ", STRING, BIGINT, -3),
        ("1e3", STRING, DOUBLE, 1000.0),
        ("1.5", STRING, MONEY, Decimal("1.50")),
        ("tr", STRING, BOOLEAN, True),
        ("YES", STRING, BOOLEAN, True),
        ("no", STRING, BOOLEAN, False),
        ("", STRING, BOOLEAN, False),
        (True, BOOLEAN, STRING, "true"),
        (1e7, DOUBLE, STRING, "1.0E7"),
        (Decimal("1E+2"), decimal(5, 0), STRING, "100"),
        ("AAE=", STRING, BYTES, b"\x00\x01"),
        (b"\x00\x01", BYTES, STRING, "AAE="),
        ("1970-01-02", STRING, TIMESTAMP, 86_400_000),
        ("2013", STRING, DATE, 15706),
        ("01:00:00.5", STRING, TIME, 3_600_500),
        (86_400_001, TIMESTAMP, STRING, "1970-01-02T00:00:00.001"),
        (86_400_001, TIMESTAMP, DATE, 1),
        (86_400_001, TIMESTAMP, TIME, 1),
        (2, DATE, TIMESTAMP, 172_800_000),
        (1, DATE, STRING, "1970-01-02"),
        ([1, None], array(INTEGER), array(STRING), ["1", None]),
        ([1, None], array(INTEGER), STRING, "[1, null]"),
        ({"a": 1}, map_of(STRING, INTEGER), STRING, "{a=1}"),
        ({"A": "bar"}, struct(Column("A", STRING)), STRING, "Struct{A=bar}"),
        ({"A": 1}, struct(Column("A", INTEGER)), struct(Column("A", STRING), Column("B", DOUBLE)), {"A": "1", "B": None}),
        ("5", ANY, BIGINT, 5),
        (5, ANY, STRING, "5"),
        ({"a": [1]}, ANY, STRING, '{"a":[1]}'),
    ],
)
def test_cast(value: Any, source: DataType, target: DataType, expected: Any) -> None:
    convert = make_cast(source, target)
    assert convert is not None
    found = convert(value)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [
        ("x", STRING, INTEGER),
        ("1_000", STRING, INTEGER),
        (str(2**31), STRING, INTEGER),
        ("99999.00", STRING, MONEY),
        ("2013-13-01", STRING, TIMESTAMP),
        ("?", STRING, BYTES),
        ([1], ANY, BIGINT),
    ],
)
def test_a_cast_that_cannot_be_done_raises(value: Any, source: DataType, target: DataType) -> None:
    convert = make_cast(source, target)
    assert convert is not None
    with pytest.raises((ValueError, ArithmeticError)):
        convert(value)


def test_a_cast_between_types_that_have_none_names_both() -> None:
    with pytest.raises(InvalidInput, match="cannot cast BOOLEAN to DOUBLE"):
        make_cast(BOOLEAN, DOUBLE)


@pytest.mark.parametrize(
    ("symbol", "left", "right", "type", "expected"),
    [
        ("+", "1.10", "2.2", decimal(5, 2), "3.30"),
        ("*", "1.5", "1.5", decimal(5, 2), "2.25"),
        ("/", "1.0", "4.0", decimal(10, 6), "0.250000"),
        ("%", "-7.5", "2.0", decimal(4, 1), "-1.5"),
        ("//", "-7.5", "2.0", decimal(4, 0), "-4"),
        ("floor %", "-7.5", "2.0", decimal(4, 1), "0.5"),
    ],
)
def test_decimal_arithmetic_is_exact(symbol: str, left: str, right: str, type: DataType, expected: str) -> None:
    result = decimal_operator(symbol, type)(Decimal(left), Decimal(right))
    assert str(result) == expected


@pytest.mark.parametrize(("symbol", "left", "right"), [("/", "1", "3"), ("/", "1", "0"), ("*", "999", "999"), ("%", "1", "0")])
def test_a_decimal_result_that_does_not_fit_raises(symbol: str, left: str, right: str) -> None:
    with pytest.raises(ArithmeticError):
        decimal_operator(symbol, decimal(4, 2))(Decimal(left), Decimal(right))
