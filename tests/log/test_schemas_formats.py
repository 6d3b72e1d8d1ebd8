"""Serdes: JSON, DELIMITED, KAFKA and NONE, with their coercions and refusals."""

from __future__ import annotations

import pickle
import struct as pack
from decimal import Decimal

import pytest

from logflume.log import DecodeError, InvalidInput, UnknownName
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
    FormatSpec,
    array,
    decimal,
    map_of,
    opaque,
    serde,
    struct,
)

JSON = FormatSpec("JSON")
BARE = FormatSpec("JSON", is_wrapped=False)


def columns(**types: object) -> list[Column]:
    return [Column(name, type) for name, type in types.items()]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        (INTEGER, "7", 7),
        (INTEGER, '"-7"', -7),
        (INTEGER, "7.9", 7),
        (BIGINT, "1e3", 1000),
        (BIGINT, "9223372036854775807", 2**63 - 1),
        (DOUBLE, "3", 3.0),
        (DOUBLE, '" 3.5 "', 3.5),
        (DOUBLE, "1e400", float("inf")),
        (BOOLEAN, "true", True),
        (STRING, "12.50", "12.50"),
        (STRING, "true", "true"),
        (STRING, '[1, null, "x", [2]]', "[1, null, x, [2]]"),
        (STRING, '{"B": 1.10, "a": [true, null]}', '{"B":1.10,"a":[true,null]}'),
        (STRING, '"\\u00e9\\""', 'é"'),
        (decimal(6, 2), "1.5", Decimal("1.50")),
        (decimal(6, 2), '"1.500"', Decimal("1.50")),
        (decimal(38, 20), "1.00000000000000000001", Decimal("1.00000000000000000001")),
        (BYTES, '"dmFyaWF0aW9ucw=="', b"variations"),
        (TIMESTAMP, "-1", -1),
        (TIME, '"86399999"', 86_399_999),
        (DATE, "19000", 19000),
        (array(DOUBLE), '[1, "2.5", null]', [1.0, 2.5, None]),
        (map_of(STRING, BIGINT), '{"a": 1, "b": null, "c": "3"}', {"a": 1, "b": None, "c": 3}),
        (struct(Column("X", INTEGER), Column("Y", STRING)), '{"x": 1, "z": 2}', {"X": 1, "Y": None}),
        (ANY, '{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        (STRING, "null", None),
    ],
)
def test_json_reads_a_value_as_its_column_type(type: object, text: str, value: object) -> None:
    wrapped = serde(JSON, columns(V=type, OTHER=STRING))
    assert wrapped.decode(b'{"V": %s, "OTHER": "o"}' % text.encode()) == (value, "o")
    assert wrapped.decode(b'{"more": [{}], "v": %s, "other": "o"}' % text.encode()) == (value, "o")
    bare = serde(BARE, columns(V=type))
    assert bare.decode(text.encode()) == (None if value is None else (value,))


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (INTEGER, "2147483648"),
        (INTEGER, '"7.5"'),
        (INTEGER, "true"),
        (BIGINT, "9223372036854775808"),
        (BIGINT, "1e400000000"),
        (DOUBLE, '"abc"'),
        (DOUBLE, "NaN"),
        (BOOLEAN, '"true"'),
        (BOOLEAN, "1"),
        (decimal(4, 2), "123.4"),
        (decimal(4, 2), "1.234"),
        (decimal(4, 2), '"NaN"'),
        (BYTES, '"not base64!"'),
        (TIME, "86400000"),
        (array(BIGINT), "{}"),
        (map_of(STRING, BIGINT), "[]"),
        (struct(Column("X", INTEGER)), "1"),
        (BIGINT, ""),
        (BIGINT, "{"),
        (STRING, '"\\ud800'),
    ],
)
def test_json_refuses_what_does_not_fit_and_says_where(type: object, text: str) -> None:
    with pytest.raises(DecodeError):
        serde(JSON, columns(V=type)).decode(b'{"V": %s}' % text.encode())
    with pytest.raises(DecodeError):
        serde(BARE, columns(V=type)).decode(text.encode())


@pytest.mark.parametrize("data", [b"", b"[1]", b"7", b"\xff\xfe", b"[" * 100_000, b'{"A":1}x'])
def test_json_refuses_what_is_not_an_object(data: bytes) -> None:
    with pytest.raises(DecodeError):
        serde(JSON, columns(A=BIGINT)).decode(data)


def test_json_looks_names_up_exactly_then_upper_case() -> None:
    s = serde(JSON, columns(A=BIGINT, b=BIGINT, Cd=BIGINT))
    assert s.decode(b'{"a": 1, "A": 2, "B": 3, "cd": 4}') == (2, None, None)
    assert s.decode(b'{"a": 1, "b": 3, "Cd": 4}') == (1, 3, 4)
    assert serde(JSON, columns(FLIGHT=BIGINT)).decode(b'{"Flight": 5}') == (5,)
    assert serde(JSON, columns(FLIGHT=BIGINT, X=BIGINT)).decode(b"{}") == (None, None)


def test_json_null_is_no_row() -> None:
    s = serde(JSON, columns(A=BIGINT))
    assert s.decode(None) is None
    assert s.decode(b"null") is None
    assert s.encode(None) is None
    assert serde(BARE, columns(A=BIGINT)).encode((None,)) is None


def test_json_writes_nulls_decimals_and_bytes_exactly() -> None:
    s = serde(JSON, columns(A=BIGINT, D=decimal(20, 10), B=BYTES, S=struct(Column("X", DOUBLE), Column("Y", decimal(3, 1)))))
    row = (None, Decimal("0.0000001000"), b"variations", {"X": float("nan"), "Y": Decimal("1.5")})
    assert s.encode(row) == b'{"A":null,"D":0.0000001000,"B":"dmFyaWF0aW9ucw==","S":{"X":"NaN","Y":1.5}}'


def test_json_refuses_a_value_it_cannot_write() -> None:
    with pytest.raises(InvalidInput, match="cannot be written as JSON"):
        serde(JSON, columns(A=ANY)).encode((object(),))


def test_a_subset_of_columns_is_a_serde_with_fewer() -> None:
    data = b'{"a": 1, "b": {"deep": [1, 2, {"x": null}]}, "c": "x"}'
    assert serde(JSON, columns(c=STRING)).decode(data) == ("x",)
    assert serde(JSON, ()).decode(data) == ()


@pytest.mark.parametrize(
    ("type", "value", "text"),
    [
        (INTEGER, -5, '"-5"'),
        (BIGINT, 5, "5"),
        (DOUBLE, 1e7, "1.0E7"),
        (DOUBLE, 12.5, "12.5"),
        (BOOLEAN, True, "true"),
        (STRING, "a,b", '"a,b"'),
        (STRING, 'say "hi"', '"say ""hi"""'),
        (STRING, "two\nlines", '"two\nlines"'),
        (STRING, "trailing ", '"trailing "'),
        (decimal(33, 16), Decimal("0.1200000000000000"), "0.1200000000000000"),
        (BYTES, b"variations", "dmFyaWF0aW9ucw=="),
        (TIMESTAMP, 10, "10"),
    ],
)
def test_delimited_both_ways(type: object, value: object, text: str) -> None:
    s = serde(FormatSpec("DELIMITED"), columns(V=type, W=STRING))
    data = s.encode((value, None))
    assert data == text.encode() + b","
    assert s.decode(data) == (value, None)


def test_delimited_null_first_field_and_other_delimiter() -> None:
    s = serde(FormatSpec("DELIMITED", delimiter="|"), columns(A=STRING, B=BIGINT, C=STRING))
    assert s.encode((None, 1, "#x")) == b'|1|"#x"'
    assert s.encode(("", 1, "x")) == b'""|1|x'
    assert serde(FormatSpec("DELIMITED"), columns(A=STRING)).encode((None,)) == b'""'
    assert s.decode(b'|1|"a|b"') == (None, 1, "a|b")


@pytest.mark.parametrize(
    ("type", "value", "data"),
    [
        (BIGINT, 5, b"\x08\x05"),
        (STRING, "x", b"\n\x01x"),
        (struct(Column("A", BIGINT), Column("B", STRING)), {"A": 5, "B": "x"}, b"\x08\x05\x12\x01x"),
        (STRING, None, None),
    ],
)
def test_a_single_column_may_be_a_protobuf_message_itself(type: object, value: object, data: bytes | None) -> None:
    s = serde(FormatSpec("PROTOBUF_NOSR", is_wrapped=False), columns(V=type))
    assert s.encode((value,)) == data
    assert s.decode(data) == (None if data is None else (value,))


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [(BOOLEAN, "TRUE", True), (BOOLEAN, "yes", False), (BYTES, "dmFy", b"var"), (BYTES, "YQ", b"a"), (BYTES, "YQ==", b"a")],
)
def test_delimited_text_is_read_as_java_reads_it(type: object, text: str, value: object) -> None:
    assert serde(FormatSpec("DELIMITED"), columns(V=type)).decode(text.encode()) == (value,)


@pytest.mark.parametrize("data", [b"1", b"1,2,3", b"", b"x,2", b'1,"2', b"\xff,2", b"1.5,x"])
def test_delimited_refuses_a_row_that_does_not_fit(data: bytes) -> None:
    with pytest.raises(DecodeError):
        serde(FormatSpec("DELIMITED"), columns(A=BIGINT, B=STRING)).decode(data)


@pytest.mark.parametrize(
    ("type", "value", "data"),
    [
        (INTEGER, -2, pack.pack(">i", -2)),
        (BIGINT, 2**40, pack.pack(">q", 2**40)),
        (DOUBLE, 2.5, pack.pack(">d", 2.5)),
        (STRING, "é", "é".encode()),
        (BYTES, b"\x00\x01", b"\x00\x01"),
    ],
)
def test_kafka_primitives_are_big_endian(type: object, value: object, data: bytes) -> None:
    s = serde(FormatSpec("KAFKA"), columns(V=type))
    assert s.encode((value,)) == data
    assert s.decode(data) == (value,)
    assert s.encode((None,)) is None


def test_kafka_refuses_wrong_sizes_values_and_types() -> None:
    with pytest.raises(DecodeError, match="expected INTEGER as 4 bytes, found 5"):
        serde(FormatSpec("KAFKA"), columns(V=INTEGER)).decode(b"12345")
    with pytest.raises(InvalidInput, match="cannot be written as INTEGER"):
        serde(FormatSpec("KAFKA"), columns(V=INTEGER)).encode((2**31,))
    with pytest.raises(InvalidInput, match="V: 3 cannot be written as STRING: expected text, found int"):
        serde(FormatSpec("KAFKA"), columns(V=STRING)).encode((3,))
    with pytest.raises(InvalidInput, match="The 'KAFKA' format does not support type 'ARRAY'"):
        serde(FormatSpec("KAFKA"), columns(V=array(BIGINT)))
    with pytest.raises(InvalidInput, match="only supports 1 columns"):
        serde(FormatSpec("KAFKA"), columns(V=BIGINT, W=BIGINT))


def test_none_holds_nothing() -> None:
    s = serde(FormatSpec("NONE"), ())
    assert (s.decode(None), s.decode(b"x"), s.encode(())) == (None, (), None)
    with pytest.raises(InvalidInput):
        serde(FormatSpec("NONE"), columns(V=BIGINT))


def test_unknown_format_names_near_matches() -> None:
    with pytest.raises(UnknownName, match=r"unknown format 'JSN'; did you mean 'JSON'"):
        serde(FormatSpec("JSN"), ())


def test_map_keys_must_be_strings() -> None:
    with pytest.raises(InvalidInput, match="JSON only supports MAP types with STRING keys"):
        serde(JSON, columns(V=array(map_of(BIGINT, DOUBLE))))


def test_opaque_serdes() -> None:
    assert opaque("json").encode(({"a": (1, 2)},)) == b'{"a":[1,2]}'
    assert opaque("bytes").decode(b"\xff") == (b"\xff",)
    assert opaque("bytes").encode(("é",)) == "é".encode()
    assert opaque("text").decode(b"x") == ("x",)


def test_a_serde_is_shipped_as_its_spec_and_columns() -> None:
    s = pickle.loads(pickle.dumps(serde(JSON, columns(A=BIGINT))))
    assert s.decode(b'{"a": 3}') == (3,)


def test_a_value_of_any_type_beside_others_has_no_number_that_becomes_null() -> None:
    columns = (Column("price", decimal(9, 7)), Column("any", ANY), Column("none", STRING))
    encode = serde(FormatSpec("JSON", is_plain=True), columns).encode
    assert encode((Decimal("0.0000001"), {"of": [float("inf"), None]}, None)) == (
        b'{"price":0.0000001,"any":{"of":["Infinity",null]},"none":null}'
    )
