"""Kernels of the forms whose schemas are registered: what they read and write is what the serde does, record by record."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log.records import Chunk
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
    MemoryRegistry,
    RegisteredSchema,
    array,
    decimal,
    map_of,
    schema_type,
    serde,
    struct,
)
from logflume.streams import graph as g
from logflume.streams.columns import encode as encoding
from logflume.streams.columns.batch import Batch
from logflume.streams.columns.column import Bytes, joined
from logflume.streams.columns.column import Column as Values
from logflume.streams.columns.decode import ValueDecoder
from logflume.streams.columns.encode import KeyEncoder, RowEncoder
from logflume.streams.expr import Side
from logflume.streams.kernels import kernel_loader

pytestmark = pytest.mark.timeout(600)  # kernels that were never compiled here are compiled first
PLAIN = (BOOLEAN, INTEGER, BIGINT, DOUBLE, STRING, DATE, TIMESTAMP)
OTHER = (BYTES, TIME, decimal(9, 3), decimal(30, 0))
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    assert kernel_loader().load("avro_rows", "proto_rows", "message_rows"), (
        "the tests compare with the compiled tier, which needs numba"
    )


def values_of(type: DataType) -> st.SearchStrategy[Any]:
    if type.kind is Kind.STRUCT:
        return st.fixed_dictionaries({field.name: st.none() | values_of(field.type) for field in type.fields})
    if type.element is not None:
        item = st.none() | values_of(type.element)
        return st.lists(item, max_size=3) if type.key is None else st.dictionaries(text, item, max_size=3)
    if type.kind is Kind.DECIMAL:
        return st.integers(-(10**type.precision) + 1, 10**type.precision - 1).map(lambda n: Decimal(f"{n}E-{type.scale}"))
    return {
        Kind.BYTES: st.binary(max_size=9),
        Kind.TIME: st.integers(0, 86_399_999),
        Kind.BOOLEAN: st.booleans(),
        Kind.INTEGER: st.integers(-(2**31), 2**31 - 1),
        Kind.DATE: st.integers(-700_000, 2_000_000),
        Kind.BIGINT: st.integers(-(2**63), 2**63 - 1),
        Kind.TIMESTAMP: st.integers(-62_135_596_800_000, 253_402_300_799_999),
        Kind.DOUBLE: st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 1.5]),
        Kind.STRING: text,
    }[type.kind]


def chunk_of(values: Sequence[bytes | None]) -> Chunk:
    buffer, starts, sizes = joined(list(values))
    count = len(values)
    zeros = np.zeros(count, np.int64)
    no_keys, no_headers = np.full(count, -1, np.int32), np.zeros(count, np.int32)
    return Chunk("t", 0, buffer, np.arange(count), zeros, zeros, no_keys, starts, sizes, zeros, no_headers, count)


def decoded(decoder: ValueDecoder, records: Sequence[bytes | None]) -> tuple[list[Any], list[int]]:
    """Return the rows of a run (None: null), and which records could not be decoded."""
    failed: list[int] = []
    found = decoder.decode(chunk_of(records), 0, len(records), lambda row, _: failed.append(row))
    columns = [column.objects() for column in found.columns.values()]
    count = len(records) if found.rows is None else len(found.rows)
    rows: list[Any] = [tuple([_comparable(values[row]) for values in columns]) for row in range(count)]
    if found.nulls is not None:
        rows = [None if null else row for row, null in zip(rows, found.nulls.tolist(), strict=True)]
    return rows, failed


def _comparable(value: Any) -> Any:
    """Return a value with its type, and NaN by its name, also where a list, a map or a struct holds it."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, list | tuple):
        return type(value), [_comparable(item) for item in value]
    if isinstance(value, dict):
        return dict, {key: _comparable(item) for key, item in value.items()}
    return type(value), value


def assert_read_alike(
    spec: FormatSpec, columns: tuple[Column, ...], used: frozenset[str], records: list[bytes | None], good: bytes | None
) -> None:
    """Decode with the kernels and without. So many records are `good` that kernels are used."""
    many = records + [good] * (encoding.FEW_ROWS + len(records))
    found = decoded(ValueDecoder(spec, columns, used), many)
    with kernel_loader().held_back():
        assert found == decoded(ValueDecoder(spec, columns, used), many)


def types(depth: int = 2) -> st.SearchStrategy[DataType]:
    """Return types of columns, half of them plain."""
    scalar = st.sampled_from(PLAIN) | st.sampled_from(OTHER)
    if depth == 0:
        return scalar
    fields = st.lists(types(depth - 1), min_size=1, max_size=3)
    named = fields.map(lambda them: struct(*(Column(f"F{n}", type) for n, type in enumerate(them))))
    items = scalar | named  # Protobuf does not repeat what is repeated
    return st.sampled_from(PLAIN) | scalar | named | items.map(array) | items.map(lambda item: map_of(STRING, item))


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[Column, ...], list[tuple[Any, ...]]]:
    types_of = [draw(st.sampled_from(PLAIN)), *draw(st.lists(types(), min_size=1, max_size=5))]
    columns = tuple(Column(f"C{place}", type) for place, type in enumerate(types_of))
    row = st.tuples(*(st.none() | values_of(type) for type in types_of))
    return columns, draw(st.lists(row, min_size=1, max_size=6))


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Return something that damages bytes: cuts, changes, inserts."""
    place, byte = draw(st.integers(0, 60)), draw(st.integers(0, 255))
    manner = draw(st.sampled_from(["none", "none", "cut", "change", "insert"]))
    if manner == "cut":
        return lambda data: data[:place]
    if manner == "change":
        return lambda data: data[:place] + bytes([byte]) + data[place + 1 :]
    if manner == "insert":
        return lambda data: data[:place] + bytes([byte]) + data[place:]
    return lambda data: data


@pytest.mark.parametrize(
    ("name", "nullables"),
    [
        ("AVRO", ""),
        ("JSON_SR", ""),
        ("PROTOBUF", ""),
        ("PROTOBUF", "OPTIONAL"),
        ("PROTOBUF", "WRAPPER"),
        ("PROTOBUF_NOSR", ""),
        ("ROW", ""),
    ],
)
def test_columns_are_read_and_written_as_rows_are(name: str, nullables: str) -> None:
    @settings(max_examples=25, deadline=None)
    @given(tables(), st.lists(damages(), min_size=1, max_size=6), st.data())
    def check(table: Any, damage: list[Callable[[bytes], bytes]], data: st.DataObject) -> None:
        columns, rows = table
        registry = MemoryRegistry()
        spec = FormatSpec(name, registry=registry.location, subject="s", nullables=nullables)
        encode = serde(spec, columns).encode
        written = [encode(row) for row in rows]
        assert encoded(spec, columns, rows) == written * (encoding.FEW_ROWS // len(rows) + 1)
        used = frozenset(data.draw(st.lists(st.sampled_from([column.name for column in columns]))))
        records = [None if record is None else change(record) for record, change in zip(written, damage * 6, strict=False)]
        assert_read_alike(spec, columns, used, [*records, None], written[0])

    check()


@pytest.mark.parametrize("is_nested", [False, True], ids=["scalar", "in a list"])
@pytest.mark.parametrize("name", ["AVRO", "PROTOBUF", "PROTOBUF_NOSR"])
def test_a_value_that_does_not_fit_counts_where_its_column_is_wanted(name: str, is_nested: bool) -> None:
    def columns(type: DataType) -> tuple[Column, ...]:
        return Column("N", BIGINT), Column("PRICE", array(type) if is_nested else type)

    registry = MemoryRegistry()
    spec = FormatSpec(name, registry=registry.location, subject="s")
    large = Decimal("123456.789")
    many = [serde(spec, columns(decimal(9, 3))).encode((n, [large] if is_nested else large)) for n in range(encoding.FEW_ROWS)]
    everyone = list(range(len(many)))
    for used, expected in ((frozenset({"N"}), []), (frozenset[str](), []), (frozenset({"N", "PRICE"}), everyone)):
        compiled = decoded(ValueDecoder(spec, columns(decimal(5, 3)), used), many)
        with kernel_loader().held_back():
            exact = decoded(ValueDecoder(spec, columns(decimal(5, 3)), used), many)
        assert compiled == exact
        assert exact[1] == expected


def encoded(spec: FormatSpec, columns: tuple[Column, ...], rows: list[tuple[Any, ...]]) -> list[bytes | None]:
    many = rows * (encoding.FEW_ROWS // len(rows) + 1)
    count = len(many)
    keys = KeyEncoder(FormatSpec("KAFKA"), (), is_raw=True, window=None)
    made: dict[tuple[Side, str], Values] = {}
    for column, values in zip(columns, zip(*many, strict=True), strict=True):
        made[Side.VALUE, column.name] = Values.of_objects(list(values), column.type.kind)
        made[Side.VALUE, column.name].vector()
    schema = g.Schema((), columns)
    batch = Batch(schema, np.zeros(count, np.int64), Bytes.of_objects([b"key"] * count), made)

    def fail(row: int, error: Exception) -> None:
        raise error

    return RowEncoder(spec, columns, keys).encode(batch, fail).values.objects()


@pytest.mark.parametrize("name", ["AVRO", "PROTOBUF", "ROW"])
def test_rows_with_values_of_all_types_go_through_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = struct(
        Column("CITY", STRING), Column("AT", struct(Column("X", DOUBLE), Column("Y", DOUBLE))), Column("TAGS", array(STRING))
    )
    columns = (
        Column("ID", BIGINT), Column("PRICE", decimal(9, 2)), Column("RAW", BYTES), Column("DAY", DATE), Column("TIME", TIME),
        Column("PLACE", place), Column("ITEMS", array(struct(Column("N", INTEGER)))), Column("BY_NAME", map_of(STRING, BIGINT)),
    )  # fmt: skip
    rows: list[tuple[Any, ...]] = []
    for n in range(60):
        inner = {"CITY": f"c{n}", "AT": {"X": n / 2, "Y": -0.5} if n % 3 else None, "TAGS": ["a", "é"][: n % 3]}
        rows.append(
            (n, Decimal(n - 30).scaleb(-2), bytes([n]), 20_000, n, inner if n % 5 else None, [{"N": n}] * (n % 3), {"k": n})
        )
    registry = MemoryRegistry()
    spec = FormatSpec(name, registry=registry.location, subject="s")
    written = [serde(spec, columns).encode(row) for row in rows]
    expected = [serde(spec, columns).decode(record) for record in written]

    def refuse(self: Any, *_: Any) -> Any:
        raise AssertionError("the serde was asked")

    monkeypatch.setattr(RowEncoder, "_exact_rows", refuse)
    assert encoded(spec, columns, rows)[: len(rows)] == written
    decoder = ValueDecoder(spec, columns, frozenset(column.name for column in columns))
    decoder._exact = lambda *_: refuse(None)
    found = decoder.decode(chunk_of(written), 0, len(written), refuse)
    assert list(zip(*(column.objects() for column in found.columns.values()), strict=True)) == expected
    if name != "PROTOBUF":
        assert expected == rows


def test_unions_of_several_types_are_written_as_the_serde_writes_them() -> None:
    union = struct(Column("int", INTEGER), Column("string", STRING))
    text = json.dumps({"type": "record", "name": "R", "fields": [
        {"name": "ID", "type": "long"}, {"name": "U", "type": ["null", "int", "string"], "default": None}]})  # fmt: skip
    registry = MemoryRegistry()
    registry.register("s", "AVRO", text)
    spec = FormatSpec("AVRO", registry=registry.location, subject="s", uses_latest=True)
    columns = (Column("ID", BIGINT), Column("U", union))
    branches = [{"int": 5, "string": None}, {"int": None, "string": "é"}, {"int": None, "string": None}, None]
    rows: list[tuple[Any, ...]] = [(n, branches[n % len(branches)]) for n in range(60)]
    written = [serde(spec, columns).encode(row) for row in rows]
    assert encoded(spec, columns, rows)[: len(rows)] == written
    read = [fastavro.schemaless_reader(io.BytesIO(data[5:]), json.loads(text)) for data in written if data is not None]
    assert [each["U"] for each in read] == [[5, "é", None, None][n % len(branches)] for n in range(60)]


@pytest.mark.parametrize("others", [(1, 6), (1, 4)], ids=["around it", "among its fields"])
def test_oneofs_are_written_as_the_serde_writes_them(others: tuple[int, int]) -> None:
    text = f"""syntax = "proto3"; message M {{
      int64 id = {others[0]}; oneof pay {{ int32 cash = 3; string card = 5; M gift = 2; }} string note = {others[1]}; }}"""
    registry = MemoryRegistry()
    registry.register("s", "PROTOBUF", text)
    spec = FormatSpec("PROTOBUF", registry=registry.location, subject="s", uses_latest=True, is_strict=False)
    pay = struct(Column("CASH", INTEGER), Column("CARD", STRING), Column("GIFT", struct(Column("ID", BIGINT))))
    columns = (Column("NOTE", STRING), Column("ID", BIGINT), Column("PAY_0", pay))
    branches = [{"CASH": 0}, {"CARD": "é"}, {"GIFT": {"ID": 4}}, {}, None]
    rows: list[tuple[Any, ...]] = [(f"n{n}", n, branches[n % len(branches)]) for n in range(60)]
    written = [serde(spec, columns).encode(row) for row in rows]
    assert encoded(spec, columns, rows)[: len(rows)] == written
    nothing = dict.fromkeys(("CASH", "CARD", "GIFT"))
    expected = [(note, id_, {**nothing, **pay} if pay else None) for note, id_, pay in rows]
    assert [serde(spec, columns).decode(data) for data in written] == expected
    found = ValueDecoder(spec, columns, frozenset(column.name for column in columns))
    assert decoded(found, written)[0] == [tuple(_comparable(value) for value in row) for row in expected]


def test_unions_in_json_are_read_and_written_as_the_serde_does() -> None:
    text = '{"type": "object", "properties": {"ID": {"type": "integer"}, "U": {"type": ["null", "string", "integer"]}}}'
    names = [f"io.confluent.connect.json.OneOf.field.{i}" for i in range(2)]
    registry = MemoryRegistry()
    registry.register("s", "JSON", text)
    spec = FormatSpec("JSON_SR", registry=registry.location, subject="s", uses_latest=True)
    columns = (Column("ID", BIGINT), Column("U", struct(Column(names[0], STRING), Column(names[1], BIGINT))))
    branches = [{names[0]: "é", names[1]: None}, {names[0]: None, names[1]: 5}, None]
    rows: list[tuple[Any, ...]] = [(n, branches[n % len(branches)]) for n in range(60)]
    written = encoded(spec, columns, rows)[: len(rows)]
    assert written[1] == b'\0\0\0\0\1{"ID":1,"U":5}'
    assert written == [serde(spec, columns).encode(row) for row in rows]
    for used in ({"ID", "U"}, {"ID"}):
        found, failed = decoded(ValueDecoder(spec, columns, frozenset(used)), written)
        assert not failed
        assert found == [tuple(_comparable(value) for value in row[: len(used)]) for row in rows]


def test_a_value_that_its_column_cannot_hold_is_reported_and_the_others_are_read() -> None:
    registry = MemoryRegistry()
    wide = FormatSpec("AVRO", registry=registry.location, subject="s")
    price = struct(Column("PRICE", decimal(9, 2)))
    written = [
        serde(wide, (Column("ID", BIGINT), Column("OF", price))).encode((n, {"PRICE": Decimal(n)})) for n in range(90, 150)
    ]
    columns = (Column("ID", BIGINT), Column("OF", struct(Column("PRICE", decimal(4, 2)))))
    rows, failed = decoded(ValueDecoder(wide, columns, frozenset({"ID", "OF"})), written)
    assert failed == list(range(10, 60))
    assert [row[1][1]["PRICE"][1] for row in rows] == [Decimal(n) for n in range(90, 100)]
    rows, failed = decoded(ValueDecoder(wide, columns, frozenset({"ID", "OF"})), written[:10] * 9 + written[:20])
    assert failed == list(range(100, 110))
    assert len(rows) == 100


# ------------------------------------------------------------------------------------------------ other people's schemas

AVRO_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(),
    "string": text,
    "bytes": st.binary(max_size=9),
}
READS = {
    "boolean": (BOOLEAN,), "int": (INTEGER, BIGINT, DOUBLE, DATE), "long": (BIGINT, DOUBLE, TIMESTAMP), "float": (DOUBLE,),
    "double": (DOUBLE,), "string": (STRING,), "enum": (STRING,),
}  # fmt: skip


@st.composite
def avro_types(draw: st.DrawFn, *, depth: int = 0, in_union: bool = False) -> tuple[Any, st.SearchStrategy[Any]]:
    """Return an Avro type and its values."""
    kinds = [
        *AVRO_SCALARS,
        "enum",
        "fixed",
        *([] if depth == 2 else ["array", "map", "record"]),
        *([] if in_union else ["union"]),
    ]
    kind = draw(st.sampled_from(kinds))
    name = f"N{draw(st.uuids()).hex}"
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["RED", "GREEN"]}, st.sampled_from(["RED", "GREEN"])
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": 3}, st.binary(min_size=3, max_size=3)
    if kind == "array":
        items, item = draw(avro_types(depth=depth + 1))
        return {"type": "array", "items": items}, st.lists(item, max_size=3)
    if kind == "map":
        items, item = draw(avro_types(depth=depth + 1))
        return {"type": "map", "values": items}, st.dictionaries(text, item, max_size=3)
    if kind == "record":
        inner, item = draw(avro_types(depth=depth + 1))
        return {"type": "record", "name": name, "fields": [{"name": "f", "type": inner}]}, st.fixed_dictionaries({"f": item})
    if kind == "union":
        inner, item = draw(avro_types(depth=depth, in_union=True))
        branches = draw(st.permutations(["null", inner]))
        return branches, st.none() | item
    return kind, AVRO_SCALARS[kind]


@settings(max_examples=120, deadline=None)
@given(st.lists(avro_types(), min_size=1, max_size=6), st.lists(damages(), min_size=1, max_size=4), st.data())
def test_records_of_any_avro_schema_are_read_as_the_serde_reads_them(
    fields: list[tuple[Any, st.SearchStrategy[Any]]], damage: list[Callable[[bytes], bytes]], data: st.DataObject
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": f"f{n}", "type": type} for n, (type, _) in enumerate(fields)]}
    registry = MemoryRegistry()
    head = b"\0" + registry.put("s", RegisteredSchema(0, "AVRO", json.dumps(schema))).to_bytes(4, "big")
    spec = FormatSpec("AVRO", registry=registry.location, subject="s")
    own = {column.name: column.type for column in schema_type(spec).fields}
    columns = [Column("LEFT", BIGINT), Column("RIGHT", struct(Column("OF", STRING)))]
    for n, (type, _) in enumerate(fields):
        branches = [type] if not isinstance(type, list) else [each for each in type if each != "null"]
        kind = branches[0]["type"] if isinstance(branches[0], dict) else branches[0]
        its = data.draw(st.sampled_from((own[f"f{n}"], *READS.get(kind, ()))))
        if data.draw(st.booleans()) or kind in READS:
            columns.append(Column(f"F{n}", its))
    row = st.fixed_dictionaries({f"f{n}": strategy for n, (_, strategy) in enumerate(fields)})
    records: list[bytes | None] = []
    for change in damage:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), data.draw(row))
        good = head + out.getvalue()
        records.append(change(good))
    assert_read_alike(spec, tuple(columns), frozenset(column.name for column in columns), records, good)


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Outer {
  int32 a = 1; sint64 b = 2; uint64 c = 3; fixed32 d = 4; sfixed64 e = 5; float f = 6; bool g = 7; string h = 8; bytes i = 9;
  Color j = 10; optional Color k = 11; repeated int32 l = 12; repeated double m = 13; repeated string n = 14;
  map<string, Outer> o = 15;
  Outer p = 16; google.protobuf.Timestamp q = 17; google.protobuf.Int64Value r = 18; google.protobuf.StringValue s = 19;
  oneof choice { int32 t = 20; string u = 21; Outer v = 22; }
  sint32 w = 23; uint32 x = 24; fixed64 y = 25; optional double z = 26;
  enum Color { RED = 0; GREEN = 1; BLUE = 300; }
}
"""
PROTO_COLUMNS = (
    Column("A", INTEGER), Column("B", BIGINT), Column("C", BIGINT), Column("D", BIGINT), Column("E", DOUBLE), Column("F", DOUBLE),
    Column("G", BOOLEAN), Column("H", STRING), Column("J", STRING), Column("K", STRING), Column("Q", TIMESTAMP),
    Column("R", BIGINT), Column("S", STRING), Column("T", INTEGER), Column("U", STRING), Column("W", INTEGER),
    Column("X", DOUBLE), Column("Y", BIGINT), Column("Z", DOUBLE), Column("I", BYTES), Column("L", array(INTEGER)),
    Column("M", array(DOUBLE)), Column("N", array(STRING)),
    Column("O", map_of(STRING, struct(Column("A", INTEGER), Column("J", STRING), Column("I", BYTES)))),
    Column("P", struct(Column("A", INTEGER), Column("I", BYTES), Column("K", STRING), Column("N", array(STRING)),
        Column("Q", TIMESTAMP), Column("R", BIGINT), Column("T", INTEGER), Column("NONE", STRING),
        Column("P", struct(Column("H", STRING), Column("L", array(INTEGER)))))),
    Column("V", struct(Column("B", STRING), Column("U", STRING))),
    Column("CHOICE_0", struct(Column("U", STRING), Column("V", struct(Column("H", STRING))), Column("T", BIGINT))),
)  # fmt: skip


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


numbers = st.sampled_from([0, 1, 2, 127, 300, -1, 2**31, 2**32 - 1, 2**63, -(2**63)]) | st.integers(-(2**63), 2**64 - 1)


@st.composite
def proto_messages(draw: st.DrawFn, *, depth: int = 0) -> bytes:
    """Return fields of any number and any wire type, one behind the other."""
    parts = []
    for _ in range(draw(st.integers(0, 5))):
        number, wire = draw(st.integers(1, 28)), draw(st.sampled_from([0, 1, 2, 2, 5]))
        payload = {
            0: lambda: varint(draw(numbers)),
            1: lambda: draw(st.binary(min_size=8, max_size=8)),
            5: lambda: draw(st.binary(min_size=4, max_size=4)),
            2: lambda: _sized(draw(st.binary(max_size=8) | text.map(str.encode) | small_messages(depth))),
        }[wire]()
        parts.append(varint(number << 3 | wire) + payload)
    return b"".join(parts)


def small_messages(depth: int) -> st.SearchStrategy[bytes]:
    seconds = st.builds(
        lambda a, b: b"\x08" + varint(a) + b"\x10" + varint(b), st.integers(-(2**33), 2**33), st.integers(0, 10**9 - 1)
    )
    value = st.builds(lambda tag, number: bytes([tag]) + varint(number), st.sampled_from([8, 16]), numbers)
    return seconds | value | (st.just(b"") if depth == 3 else proto_messages(depth=depth + 1))


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data


@settings(max_examples=120, deadline=None)
@given(st.lists(proto_messages(), min_size=1, max_size=6), st.lists(damages(), min_size=6, max_size=6), st.data())
def test_any_protobuf_message_is_read_as_the_serde_reads_it(
    messages: list[bytes], damage: list[Callable[[bytes], bytes]], data: st.DataObject
) -> None:
    registry = MemoryRegistry("mock://any-protobuf")
    head = b"\0" + registry.put("s", RegisteredSchema(0, "PROTOBUF", PROTO)).to_bytes(4, "big")
    paths = st.sampled_from([b"\0", b"\0", b"\x02\0", b"\x02\x02"])
    records: list[bytes | None] = [
        change(head + data.draw(paths) + message) for message, change in zip(messages, damage, strict=False)
    ]
    used = frozenset(data.draw(st.lists(st.sampled_from([column.name for column in PROTO_COLUMNS]), min_size=1, max_size=8)))
    assert_read_alike(FormatSpec("PROTOBUF", registry=registry.location, subject="s"), PROTO_COLUMNS, used, records, head + b"\0")


def test_a_run_may_hold_records_of_many_schemas_and_of_none() -> None:
    registry = MemoryRegistry()
    columns = (Column("ID", BIGINT), Column("NAME", STRING))
    records: list[bytes | None] = []
    for n in range(30):
        spec = FormatSpec("AVRO", registry=registry.location, subject="s", full_name=f"a.Record{n}")
        records += [serde(spec, columns).encode((n, "Zoë"))] * 4
        records.append(b"no frame" if n % 2 else None)
    rows, failed = decoded(
        ValueDecoder(FormatSpec("AVRO", registry=registry.location), columns, frozenset({"ID", "NAME"})), records
    )
    assert [row[0][1] for row in rows if row and row[0][1] is not None] == [n for n in range(30) for _ in range(4)]
    assert failed == [place for place, record in enumerate(records) if record == b"no frame"]
