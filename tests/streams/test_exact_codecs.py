"""The fast JSON path of generated code gives what the serde gives, for any JSON; encoding gives the serde's bytes."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log import DecodeError, InvalidInput
from logflume.log.records import Chunk
from logflume.log.schemas import (
    ANY,
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INTEGER,
    STRING,
    TIMESTAMP,
    Column,
    FormatSpec,
    array,
    decimal,
    serde,
    struct,
)
from logflume.streams import graph as g
from logflume.streams.expr import ColumnRef, Side
from logflume.streams.operators import operator_program

TYPES = (
    BOOLEAN, INTEGER, BIGINT, DOUBLE, STRING, ANY, BYTES, DATE, TIMESTAMP, decimal(6, 2), array(BIGINT),
    struct(Column("inner", STRING)),
)  # fmt: skip
JSON, KAFKA = FormatSpec("JSON"), FormatSpec("KAFKA")
KEY = (Column("key", STRING),)
NAMES = ("ms", "MS", "Ms", "user name", "f0", "LIST")
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "a", "12", "1.50", "true", "AAEC"]), st.text(max_size=3),
)  # fmt: skip
VALUES = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(st.sampled_from(["inner", "INNER", "x"]), SCALARS, max_size=2)
)
OBJECTS = st.dictionaries(st.sampled_from([*NAMES, "ms ", "user Name", "list"]), VALUES, max_size=5)
DOCUMENTS = st.one_of(
    st.none(),
    OBJECTS.map(lambda value: json.dumps(value).encode()),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(
        [b"", b"{", b"null", b'{"ms":1e400}', b'{"ms":01}', b'{"ms":1,"ms":2}', b'\xff{"ms":1}', b'{"ms":"\\ud800"}']
    ),
)


class Seen:
    """Collects outputs and problems of a program."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.reasons: list[str] = []

    def send(self, node: str, keys: Any, values: Any, timestamps_ms: Any, **more: Any) -> None:
        self.values += values

    def send_columns(self, node: str, records: Chunk, **more: Any) -> None:
        self.values += records.values()

    def report(self, reason: str, node: str, topic: str, partition: int, offset: int, cause: object) -> None:
        self.reasons.append(reason)


def through(columns: tuple[Column, ...], document: bytes | None) -> tuple[list[bytes | None], list[str]]:
    """Send a value through `source -> sink` and return what comes out and what was reported."""
    schema = g.Schema(KEY, columns)
    source = g.Source(name="in", schema=schema, kind=g.EdgeKind.STREAM, topic="in", key_format=KAFKA, value_format=JSON)
    kept = tuple((column.name, ColumnRef(Side.VALUE, column.name, column.type)) for column in columns)
    project = g.Project(name="all", schema=schema, kind=g.EdgeKind.STREAM, inputs=("in",), columns=kept)
    sink = g.Sink(
        name="out", schema=schema, kind=g.EdgeKind.STREAM, inputs=("all",), topic="out", key_format=KAFKA, value_format=JSON
    )
    program = operator_program({n.name: n for n in (source, project, sink)}, ["in"], ["out"])
    seen = Seen()
    program.bind({}, seen, seen).process("in", Chunk.from_columns("in", [b"k"], [document], [1], partition=0), 0, 1)
    return seen.values, seen.reasons


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(TYPES)), min_size=1, max_size=4, unique_by=lambda c: c[0]),
    DOCUMENTS,
)
def test_generated_code_reads_and_writes_what_the_serde_does(shape: list[tuple[str, Any]], document: bytes | None) -> None:
    columns = tuple(Column(name, type) for name, type in shape)
    codec = serde(JSON, columns)
    values, reasons = through(columns, document)
    try:
        expected = codec.encode(codec.decode(document))
    except DecodeError:
        assert (values, reasons) == ([], ["decode"])
        return
    except InvalidInput:
        assert (values, reasons) == ([], ["encode"])
        return
    assert (values, reasons) == ([expected], [])


def test_decimals_pass_exactly() -> None:
    columns = (Column("d", decimal(6, 2)),)
    assert through(columns, b'{"d":1.5}') == ([b'{"d":1.50}'], [])
    assert through(columns, b'{"d":1.555}') == ([], ["decode"])
    assert serde(JSON, columns).decode(b'{"d":"7"}') == (Decimal("7.00"),)


def test_doubles_that_json_cannot_hold_are_text() -> None:
    assert through((Column("x", DOUBLE),), b'{"x":"-Infinity"}') == ([b'{"x":"-Infinity"}'], [])
