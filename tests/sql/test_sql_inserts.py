"""INSERT VALUES: what a column does not hold is refused before anything is written, inside nested values too."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from logflume.sql import Catalog, StatementError
from logflume.sql.binding.context import Context
from logflume.sql.definitions import apply_definition
from logflume.sql.inserts import values_records
from logflume.sql.parser import parse_statement
from logflume.sql.row_records import RecordMakers

SOURCE = """CREATE STREAM S (K INT KEY, I INTEGER, L BIGINT, D DECIMAL(4, 2), F DOUBLE, A ARRAY<INTEGER>, M MAP<STRING, INTEGER>,
    T STRUCT<X INTEGER>) WITH (KAFKA_TOPIC='s', VALUE_FORMAT='JSON')"""


def inserted(column: str, value: str) -> Any:
    context = Context(apply_definition(parse_statement(SOURCE), Context(Catalog())), fixed_now_ms=0)
    (record,) = values_records(parse_statement(f"INSERT INTO S ({column}) VALUES ({value})"), context, RecordMakers())
    assert record.value is not None
    return json.loads(record.value, parse_float=Decimal)[column]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("K", "3000000000"),
        ("I", "2147483648"),
        ("I", "-2147483649"),
        ("I", "'2147483648'"),
        ("I", "1.5"),
        ("L", "1E30"),
        ("D", "1.234"),
        ("D", "123"),
        ("A", "ARRAY[1, 2147483648]"),
        ("A", "ARRAY[1, 1 / 0]"),
        ("M", "MAP('a' := 2147483648)"),
        ("T", "STRUCT(X := 2147483648)"),
    ],
)
def test_a_value_that_a_column_does_not_hold_is_refused(column: str, value: str) -> None:
    with pytest.raises(StatementError, match=f"`{column}`"):
        inserted(column, value)


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("I", "-2147483648", -(2**31)),
        ("I", "'7'", 7),
        ("L", "9223372036854775807", 2**63 - 1),
        ("D", "12", Decimal("12.00")),
        ("D", "1.5", Decimal("1.50")),
        ("F", "3", Decimal("3.0")),
        ("A", "ARRAY[1, NULL]", [1, None]),
        ("T", "STRUCT(X := 1)", {"X": 1}),
        ("I", "CAST(2147483648 AS INT)", -(2**31)),
    ],
)
def test_a_value_that_fits_is_written(column: str, value: str, expected: Any) -> None:
    assert inserted(column, value) == expected


@pytest.mark.parametrize(
    ("value", "types"), [("1 + NULL", "INTEGER and null"), ("NULL / 5.0", "null and DECIMAL"), ("NULL * NULL", "null and null")]
)
def test_arithmetic_with_a_null_of_no_type_is_refused(value: str, types: str) -> None:
    with pytest.raises(StatementError, match=f"Arithmetic on types {types}.* are not supported"):
        inserted("D", value)


def test_arithmetic_with_a_null_of_a_type_is_null() -> None:
    assert inserted("I", "1 + CAST(NULL AS INT)") is None
