"""INSERT VALUES: what a column does not hold is refused before anything is written, inside nested values too."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.sql import Catalog, StatementError, ast
from logflume.sql.binding.context import Context
from logflume.sql.definitions import apply_definition
from logflume.sql.insert_points import NotALiteral, RepeatedInsert, repeated_insert
from logflume.sql.inserts import values_records
from logflume.sql.parser import parse_statement
from logflume.sql.row_records import RecordColumns, RecordMakers, ValuesRecord
from logflume.sql.templates import Scanned, scan

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


SHAPES = (
    "INSERT INTO R VALUES ({0}, {1}, {2}, {3}, TRUE)",
    "INSERT INTO R (S, L, K) VALUES ({0}, -{1}, {2}), ({3}, {1}, NULL)",
    "INSERT INTO R (K, F, B) VALUES ({0}, -{1}, {2} = {3})",
    "INSERT INTO R (F, K) VALUES ({0}, CONCAT({1}, {2}))",
    "INSERT INTO P (K, L) VALUES ({0}, {1}), ({2}, {3})",
    "INSERT INTO P (L) VALUES ({0})",
    "INSERT INTO R (K, ROWTIME) VALUES ({0}, {1})",
)
LITERALS = st.one_of(
    st.integers(0, 2**63 - 1).map(str),
    st.sampled_from(("0", "7", "2147483647", "2147483648", "0.0", "1.5", "12345678901234567890.5", "NULL")),
    st.text(alphabet="a' -1;é\n", max_size=4).map(lambda text: "'" + text.replace("'", "''") + "'"),
)
SOURCES = (
    "CREATE STREAM R (K STRING KEY, L BIGINT, F DOUBLE, S STRING, B BOOLEAN) WITH (KAFKA_TOPIC='r', VALUE_FORMAT='JSON')",
    "CREATE TABLE P (K STRING PRIMARY KEY, L INT) WITH (KAFKA_TOPIC='p', VALUE_FORMAT='JSON')",
)


def catalog() -> Catalog:
    found = Catalog()
    for text in SOURCES:
        found = apply_definition(parse_statement(text), Context(found))
    return found


CONTEXT, MAKERS = Context(catalog(), fixed_now_ms=5), RecordMakers()


def long_way(text: str) -> list[ValuesRecord] | str:
    try:
        statement = parse_statement(text)
        assert isinstance(statement, ast.InsertValues)
        return values_records(statement, CONTEXT, MAKERS)
    except StatementError as refused:
        return str(refused)


def repeated(text: str) -> tuple[Scanned, RepeatedInsert | None]:
    scanned, statement = scan(text), parse_statement(text)
    assert scanned is not None
    assert isinstance(statement, ast.InsertValues)
    return scanned, repeated_insert(statement, MAKERS.of(CONTEXT.catalog.source(statement.target)), scanned.tokens)


@settings(deadline=None)
@given(st.sampled_from(SHAPES), st.lists(st.tuples(LITERALS, LITERALS, LITERALS, LITERALS), min_size=2, max_size=5))
def test_a_statement_with_other_literals_is_what_it_would_be_alone(shape: str, rows: list[tuple[str, ...]]) -> None:
    first, *others = [shape.format(*row) for row in rows]
    if isinstance(long_way(first), str):
        return
    scanned, made = repeated(first)
    for text in others:
        other = scan(text)
        assert other is not None
        if made is not None and other.key == scanned.key:
            with contextlib.suppress(NotALiteral, StatementError):
                assert made.made(other.tokens, 5) == long_way(text)


def test_a_statement_of_plain_literals_is_checked_once() -> None:
    _, made = repeated("INSERT INTO R VALUES ('a', -1, 1.5, 'it''s', FALSE)")
    other = scan("INSERT INTO R VALUES ('b''', -7, 2.5, '', FALSE)")
    assert made is not None
    assert other is not None
    assert made.made(other.tokens, 9) == [ValuesRecord("r", b"b'", b'{"L":-7,"F":2.5,"S":"","B":false}', 9)]


ROWS = st.lists(
    st.one_of(
        st.fixed_dictionaries({}, optional={name: st.sampled_from((None, "x", 1, 1.5, True, 2**63)) for name in "KLFSBk"}).map(
            lambda row: json.dumps(row).encode()
        ),
        st.sampled_from((b'{"K":"a"} {"K":"b"}', b'{"K":{}', b'"L":1}', b'{"K":', b"{}", b"[]", b"nonsense", b'{"k":"a","l":1}')),
    ),
    min_size=1,
    max_size=4,
)


@given(ROWS, st.sampled_from(("R", "P")))
def test_rows_that_are_taken_together_are_what_each_is_alone(rows: list[bytes], target: str) -> None:
    records = MAKERS.of(CONTEXT.catalog.source(target))
    together = records.columns_of_json(rows, 3)
    if together is not None:
        assert together == RecordColumns.of([records.record_of_json(row, 3) for row in rows])


def test_plain_rows_are_taken_together() -> None:
    rows = [b'{"k":"a","l":1,"s":"x\\n"}', b'{"l":-1}']
    values = [b'{"L":1,"F":null,"S":"x\\n","B":null}', b'{"L":-1,"F":null,"S":null,"B":null}']
    found = MAKERS.of(CONTEXT.catalog.source("R")).columns_of_json(rows, 3)
    assert found == RecordColumns("r", [b"a", None], values, [3, 3])


def test_arithmetic_with_a_null_of_a_type_is_null() -> None:
    assert inserted("I", "1 + CAST(NULL AS INT)") is None
