"""Records of registered schemas to columns and back: a flat record of six fields, beside the libraries that code it row by
row; and one that holds a record, a list, a map, a decimal and bytes, beside the serde.

python -m benchmarks.formats [--json]
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np

from logflume.log.records import Chunk
from logflume.log.schemas import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DOUBLE,
    INTEGER,
    STRING,
    TIMESTAMP,
    Column,
    FormatSpec,
    MemoryRegistry,
    array,
    decimal,
    map_of,
    serde,
    struct,
)  # fmt: skip
from logflume.streams import graph as g
from logflume.streams.columns.batch import Batch
from logflume.streams.columns.column import Bytes, joined
from logflume.streams.columns.decode import ValueDecoder
from logflume.streams.columns.encode import KeyEncoder, RowEncoder
from logflume.streams.kernels import kernel_loader

from ._report import Figure, main

ROWS = 100_000
COLUMNS = (
    Column("ID", BIGINT), Column("NAME", STRING), Column("PRICE", DOUBLE), Column("COUNT", INTEGER), Column("OK", BOOLEAN),
    Column("AT", TIMESTAMP),
)  # fmt: skip
TABLE = [(i, f"customer-{i % 1000}", i * 0.25, i % 50, i % 2 == 0, 1_700_000_000_000 + i) for i in range(ROWS)]


NESTED = (
    Column("ID", BIGINT), Column("NAME", STRING), Column("PRICE", decimal(9, 2)), Column("RAW", BYTES),
    Column("PLACE", struct(Column("CITY", STRING), Column("LAT", DOUBLE), Column("LON", DOUBLE))),
    Column("TAGS", array(STRING)), Column("COUNTS", map_of(STRING, BIGINT)),
)  # fmt: skip
NESTED_TABLE = [
    (
        i, f"customer-{i % 1000}", Decimal(i).scaleb(-2), b"bytes", {"CITY": f"city-{i % 9}", "LAT": i * 0.5, "LON": 1.5},
        ["a", "b"][: i % 3], {"k": i},
    )
    for i in range(ROWS)
]  # fmt: skip


def rate(work: Callable[[], Any], *, times: int = 5) -> float:
    """Return millions of rows a second of CPU, the best of several."""
    best = float("inf")
    for _ in range(times):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return ROWS / best / 1e6


def refuse(row: int, error: Exception) -> None:
    raise error


def chunk_of(values: list[bytes | None]) -> Chunk:
    buffer, starts, sizes = joined(values)
    zeros = np.zeros(ROWS, np.int64)
    no_keys, no_headers = np.full(ROWS, -1, np.int32), np.zeros(ROWS, np.int32)
    return Chunk("t", 0, buffer, np.arange(ROWS), zeros, zeros, no_keys, starts, sizes, zeros, no_headers, ROWS)


def columns() -> Iterable[Figure]:
    """Decode and encode with the kernels."""
    assert kernel_loader().load("avro_rows", "proto_rows")
    registry = MemoryRegistry()
    used = frozenset(column.name for column in COLUMNS)
    for name in ("JSON", "AVRO", "PROTOBUF", "JSON_SR"):
        spec = FormatSpec(name) if name == "JSON" else FormatSpec(name, registry=registry.location, subject=name)
        encode = serde(spec, COLUMNS).encode
        written = [encode(row) for row in TABLE]
        chunk, decoder = chunk_of(written), ValueDecoder(spec, COLUMNS, used)
        yield Figure(f"{name}: decode to columns", rate(lambda: decoder.decode(chunk, 0, ROWS, refuse)), "M/s", 2.0)  # noqa: B023
        found = decoder.decode(chunk, 0, ROWS, refuse).columns
        keys, encoder = (
            Bytes.of_objects([b"key"] * ROWS),
            RowEncoder(spec, COLUMNS, KeyEncoder(FormatSpec("KAFKA"), (), is_raw=True, window=None)),
        )
        batch = Batch(g.Schema((), COLUMNS), np.zeros(ROWS, np.int64), keys, dict(found))
        assert encoder.encode(batch, refuse).values.objects() == written
        yield Figure(f"{name}: encode from columns", rate(lambda: encoder.encode(batch, refuse)), "M/s", 1.0)  # noqa: B023


def nested() -> Iterable[Figure]:
    """Decode and encode what is no plain column: by the batch, and row by row with the serde."""
    assert kernel_loader().load("avro_rows", "proto_rows")
    registry = MemoryRegistry()
    used = frozenset(column.name for column in NESTED)
    for name in ("AVRO", "PROTOBUF"):
        spec = FormatSpec(name, registry=registry.location, subject=f"nested-{name}")
        exact = serde(spec, NESTED)
        written = [exact.encode(row) for row in NESTED_TABLE]
        chunk, decoder = chunk_of(written), ValueDecoder(spec, NESTED, used)
        decoded = rate(lambda: decoder.decode(chunk, 0, ROWS, refuse), times=2)  # noqa: B023
        by_row = rate(lambda: [exact.decode(each) for each in written], times=1)  # noqa: B023
        yield Figure(f"{name}, nested: decode to columns", decoded, "M/s")
        yield Figure(f"{name}, nested: decode to columns, times the serde", decoded / by_row, "x")
        flat = ValueDecoder(spec, NESTED, frozenset({"ID", "NAME", "PLACE"}))
        some = rate(lambda: flat.decode(chunk, 0, ROWS, refuse))  # noqa: B023
        yield Figure(f"{name}, nested: two plain fields and the record", some, "M/s")
        found = decoder.decode(chunk, 0, ROWS, refuse).columns
        keys = Bytes.of_objects([b"key"] * ROWS)
        encoder = RowEncoder(spec, NESTED, KeyEncoder(FormatSpec("KAFKA"), (), is_raw=True, window=None))
        batch = Batch(g.Schema((), NESTED), np.zeros(ROWS, np.int64), keys, dict(found))
        assert encoder.encode(batch, refuse).values.objects() == written
        encoded = rate(lambda: encoder.encode(batch, refuse), times=2)  # noqa: B023
        by_row = rate(lambda: [exact.encode(row) for row in NESTED_TABLE], times=1)  # noqa: B023
        yield Figure(f"{name}, nested: encode from columns", encoded, "M/s")
        yield Figure(f"{name}, nested: encode from columns, times the serde", encoded / by_row, "x")


def rows() -> Iterable[Figure]:
    """Decode with the libraries, into one object a record."""
    registry = MemoryRegistry()
    spec = FormatSpec("AVRO", registry=registry.location, subject="rows")
    encode = serde(spec, COLUMNS).encode
    payloads = [(encode(row) or b"")[5:] for row in TABLE]
    schema = fastavro.parse_schema(json.loads(registry.latest("rows").text))
    yield Figure(
        "fastavro: decode to dicts",
        rate(lambda: [fastavro.schemaless_reader(io.BytesIO(p), schema, None) for p in payloads]),
        "M/s",
    )
    from google.protobuf.message_factory import GetMessageClass

    from logflume.log.schemas.proto_compiler import compile_proto
    from logflume.log.schemas.proto_schema import message_at, messages_of

    spec = FormatSpec("PROTOBUF", registry=registry.location, subject="messages")
    encode = serde(spec, COLUMNS).encode
    messages = [(encode(row) or b"")[6:] for row in TABLE]
    file, _ = messages_of(compile_proto(registry.latest("messages").text))
    parse = GetMessageClass(message_at(file, (0,))).FromString
    yield Figure("protobuf (upb): parse, no field read", rate(lambda: [parse(message) for message in messages]), "M/s")


if __name__ == "__main__":
    main(columns, nested, rows)
