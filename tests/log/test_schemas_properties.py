"""Properties of serdes over random rows: what is written reads back, and the fast JSON path equals the exact one."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log import DecodeError
from logflume.log.schemas import (
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
    FormatSpec,
    Kind,
    array,
    decimal,
    map_of,
    serde,
    struct,
)
from logflume.log.schemas.coerce import java_double_text, struct_from_json
from logflume.log.schemas.json_format import any_json, any_json_rows, parse_exactly

SCALARS = [BOOLEAN, INTEGER, BIGINT, DOUBLE, decimal(12, 4), STRING, BYTES, DATE, TIME, TIMESTAMP]
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def values(type: DataType) -> st.SearchStrategy[Any]:
    match type.kind:
        case Kind.ARRAY:
            assert type.element is not None
            return st.lists(values(type.element), max_size=3)
        case Kind.MAP:
            assert type.element is not None
            return st.dictionaries(text, values(type.element), max_size=3)
        case Kind.STRUCT:
            return st.fixed_dictionaries({field.name: values(field.type) for field in type.fields})
    by_kind: dict[Kind, st.SearchStrategy[Any]] = {
        Kind.BOOLEAN: st.booleans(),
        Kind.INTEGER: st.integers(-(2**31), 2**31 - 1),
        Kind.BIGINT: st.integers(-(2**63), 2**63 - 1),
        Kind.DOUBLE: st.floats(allow_nan=False),
        Kind.DECIMAL: st.decimals(-(10**8) + 1, 10**8 - 1, places=4).map(lambda d: d.quantize(Decimal("0.0001"))),
        Kind.STRING: text,
        Kind.BYTES: st.binary(max_size=9),
        Kind.DATE: st.integers(-(2**31), 2**31 - 1),
        Kind.TIME: st.integers(0, 86_399_999),
        Kind.TIMESTAMP: st.integers(-(2**63), 2**63 - 1),
    }
    return st.none() | by_kind[type.kind]


scalar_types = st.sampled_from(SCALARS)
types = st.recursive(
    scalar_types,
    lambda inner: st.one_of(
        inner.map(array),
        inner.map(lambda t: map_of(STRING, t)),
        st.lists(inner, min_size=1, max_size=3).map(lambda ts: struct(*(Column(f"F{i}", t) for i, t in enumerate(ts)))),
    ),
    max_leaves=4,
)


@st.composite
def rows(draw: st.DrawFn, of: st.SearchStrategy[DataType]) -> tuple[tuple[Column, ...], tuple[Any, ...]]:
    columns = tuple(Column(f"C{i}", t) for i, t in enumerate(draw(st.lists(of, min_size=1, max_size=5))))
    return columns, tuple(draw(values(column.type)) for column in columns)


@settings(max_examples=150, deadline=None)
@given(rows(types))
def test_json_reads_back_what_it_wrote(case: tuple[tuple[Column, ...], tuple[Any, ...]]) -> None:
    columns, row = case
    s = serde(FormatSpec("JSON"), columns)
    assert s.decode(s.encode(row)) == row


@settings(max_examples=150, deadline=None)
@given(rows(scalar_types))
def test_delimited_reads_back_what_it_wrote(case: tuple[tuple[Column, ...], tuple[Any, ...]]) -> None:
    columns, row = case
    s = serde(FormatSpec("DELIMITED"), columns)
    expected = tuple(None if value in ("", b"") else value for value in row)
    assert s.decode(s.encode(row)) == expected


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | text
    | st.sampled_from(["1", "-2.5", "1e2", "dmE="]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["F0", "f0", "F1", "x"]), inner, max_size=3),
    max_leaves=5,
)


documents = st.dictionaries(st.sampled_from(["C0", "c0", "C1", "c1", "C2", "c2", "x"]), json_values, max_size=5)


@settings(max_examples=300, deadline=None)
@given(st.lists(types, min_size=1, max_size=3), st.lists(documents, min_size=1, max_size=6), st.booleans())
def test_the_fast_json_path_equals_the_exact_one(
    column_types: list[DataType], given_documents: list[dict[str, Any]], is_upper: bool
) -> None:
    columns = tuple(Column(f"{'C' if is_upper else 'c'}{i}", t) for i, t in enumerate(column_types))
    fast = serde(FormatSpec("JSON"), columns)
    for document in given_documents:
        data = json.dumps(document).encode()
        try:
            expected = tuple(struct_from_json(parse_exactly(data), columns, "$").values())
        except DecodeError:
            with pytest.raises(DecodeError):
                fast.decode(data)
        else:
            assert fast.decode(data) == expected


@given(st.binary(max_size=40))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    for spec in (FormatSpec("JSON"), FormatSpec("JSON", is_wrapped=False), FormatSpec("DELIMITED"), FormatSpec("KAFKA")):
        for type in SCALARS if spec.name != "KAFKA" else [INTEGER, BIGINT, DOUBLE, STRING, BYTES]:
            try:
                row = serde(spec, [Column("V", type)]).decode(data)
            except DecodeError:
                continue
            assert row is None or len(row) == 1


@given(st.floats())
def test_java_double_text_is_the_same_number(value: float) -> None:
    back = float(java_double_text(value).replace("Infinity", "inf"))
    assert back == value or (back != back and value != value)


class Pair(NamedTuple):
    left: Any
    right: Any


_ANYTHING = st.recursive(
    st.one_of(st.none(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.builds(Pair, inner, inner), st.dictionaries(st.text(), inner)),
    max_leaves=6,
)


@given(st.lists(_ANYTHING, max_size=4))
def test_many_values_are_written_as_each_by_itself(values: list[Any]) -> None:
    assert any_json_rows(values) == [None if value is None else any_json(value) for value in values]
