"""Values of registered schemas as the data source gives them: types in Spark's words, arrays, and what cannot be read."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from logflume.log import Chunk, DecodeError, InvalidInput, UnknownName
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
    FormatSpec,
    MemoryRegistry,
    array,
    decimal,
    map_of,
    of_topic,
    serde,
    struct,
)
from logflume.streams.spark.source import arrow_batch, parse_options
from logflume.streams.spark.values import ValueForm, ValueReader

COLUMNS = (
    Column("id", BIGINT), Column("n", INTEGER), Column("ok", BOOLEAN), Column("x", DOUBLE), Column("name", STRING),
    Column("raw", BYTES), Column("day", DATE), Column("at", TIMESTAMP), Column("hour", TIME), Column("price", decimal(9, 2)),
    Column("tags", array(STRING)), Column("times", array(TIMESTAMP)),
    Column("more", struct(Column("at", TIMESTAMP), Column("counts", map_of(STRING, BIGINT)))),
)  # fmt: skip
ROW = (
    7, 3, True, 0.5, "née", b"\x00\xff", 1, 1_700_000_000_123, 3_600_000, Decimal("12.50"), ["a", "b"], [1_700_000_000_123],
    {"at": 1_700_000_000_123, "counts": {"k": 2}},
)  # fmt: skip
AT = datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=datetime.UTC)
SHOWN = {
    "id": 7, "n": 3, "ok": True, "x": 0.5, "name": "née", "raw": b"\x00\xff", "day": datetime.date(1970, 1, 2), "at": AT,
    "hour": 3_600_000, "price": Decimal("12.50"), "tags": ["a", "b"], "times": [AT],
    "more": {"at": AT, "counts": [("k", 2)]},
}  # fmt: skip


def form_of(registry: MemoryRegistry, name: str = "AVRO", **more: str) -> ValueForm:
    options = {"log": "x", "topic": "t", "value.format": name, "value.registry": registry.location, **more}
    form = parse_options(options).value_form()
    assert form is not None
    return form


def batch_of(form: ValueForm, values: list[bytes | None], **more: Any) -> Any:
    chunk = Chunk.from_columns("t", [None] * len(values), values, [0] * len(values), **more)
    columns = ("topic", "partition", "offset", "timestamp_ms", "key", *form.names(), "headers")
    return arrow_batch(chunk, ValueReader(form), columns)


@pytest.mark.parametrize("name", ["AVRO", "PROTOBUF", "JSON_SR"])
def test_values_are_structs_of_the_registered_schema(name: str) -> None:
    registry = MemoryRegistry()
    columns = COLUMNS
    encode = serde(of_topic(FormatSpec(name), "t", "value", registry.location), columns).encode
    data = encode(ROW)
    form = form_of(registry, name.lower())
    if name != "JSON_SR":
        assert form.columns == columns
        assert "`times`: ARRAY<TIMESTAMP>, `more`: STRUCT<`at`: TIMESTAMP, `counts`: MAP<STRING, BIGINT>>" in form.ddl()
    made = batch_of(form, [data, None, data])
    found = made.column("value").to_pylist()
    assert found[1] is None
    assert found[0] == found[2]
    if name != "JSON_SR":  # JSON Schema has numbers where the others have times and days
        assert found[0] == SHOWN
    assert found[0]["name"] == "née"
    made.validate(full=True)


def test_ids_in_headers_are_read_and_a_value_that_is_no_record_is_the_column() -> None:
    registry = MemoryRegistry()
    registry.register("t-value", "AVRO", '"long"')
    form = form_of(registry)
    assert form.ddl() == "value BIGINT"
    made = batch_of(form, [b"\x0e"], headers=[(("__value_schema_id", b"\x01" + bytes(15) + b"\x01"),)])
    assert made.column("value").to_pylist() == [7]


def test_a_value_that_cannot_be_read_fails_the_job_or_stands_beside_its_cause() -> None:
    registry = MemoryRegistry()
    columns = COLUMNS[:2]
    encode = serde(of_topic(FormatSpec("AVRO"), "t", "value", registry.location), columns).encode
    values = [encode((7, 3)), b"{broken", None, b"\x00\x00\x00\x00\x63x", encode((8, 4))]
    with pytest.raises(DecodeError, match="offset 1: expected a zero byte and a schema id"):
        batch_of(form_of(registry), values)
    form = form_of(registry, **{"value.errors": "column"})
    made = batch_of(form, values).select(["value", "value_error", "value_bytes"]).to_pylist()
    assert [row["value"] for row in made] == [{"id": 7, "n": 3}, None, None, None, {"id": 8, "n": 4}]
    assert [row["value_bytes"] for row in made] == [None, b"{broken", None, b"\x00\x00\x00\x00\x63x", None]
    assert "Schema 99 not found" in made[3]["value_error"]
    assert form.ddl().endswith(", value_error STRING, value_bytes BINARY")


def test_options_that_cannot_be_right_are_refused() -> None:
    registry = MemoryRegistry()
    registry.register("t-value", "AVRO", '"long"')
    registry.register("u-value", "AVRO", '"string"')
    given = {"log": "x", "topic": "t"}
    assert parse_options(given).value_form() is None
    at = {"value.registry": registry.location}
    for options, said in (
        ({"value.format": "JSON", **at}, "takes AVRO, PROTOBUF or JSON_SR"),
        ({"value.subject": "t-value"}, 'is for values of a "value.format"'),
        ({"value.format": "AVRO", "topic": "t,u", **at}, "values of u are STRING, those of t are BIGINT"),
    ):
        with pytest.raises(InvalidInput, match=said):
            parse_options({**given, **options}).value_form()
    with pytest.raises(UnknownName, match=r"value\.errors"):
        form_of(registry, **{"value.errors": "ignore"})
    assert pa.types.is_int64(batch_of(form_of(registry), [None]).column("value").type)
