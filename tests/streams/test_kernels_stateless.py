"""With the kernels and without them: random programs over random, also malformed, JSON give the same."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logflume.streams as lf
from logflume.log.records import Chunk
from logflume.log.schemas import BIGINT, BOOLEAN, DOUBLE, INTEGER, STRING, TIMESTAMP, Column, DataType
from logflume.streams import col
from logflume.streams import expr as e
from logflume.streams import graph as g
from logflume.streams.columns import decode
from logflume.streams.kernels import kernel_loader
from logflume.streams.operators import operator_program

from ._kernel_rows import ENOUGH_ROWS, FIELDS, FLOATS, JSON, KAFKA, TEXTS, Recorder, rows

numba = pytest.importorskip("numba", reason="the kernels need numba")


def reference(column: Column) -> e.Expr:
    return e.ColumnRef(e.Side.VALUE, column.name, column.type)


@st.composite
def numbers(draw: st.DrawFn, depth: int = 2) -> tuple[e.Expr, DataType]:
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            column = draw(st.sampled_from([c for c in FIELDS if c.type in (INTEGER, BIGINT, DOUBLE)]))
            return reference(column), column.type
        kind = draw(st.sampled_from([INTEGER, BIGINT, DOUBLE]))
        value: Any = draw(FLOATS) if kind == DOUBLE else draw(st.sampled_from([0, 1, -3, 7, 2**31 - 1, -(2**31)]))
        return e.Literal(value, kind), kind
    left, left_type = draw(numbers(depth - 1))
    if draw(st.integers(0, 5)) == 0:
        if left_type != DOUBLE and draw(st.booleans()):
            return e.Cast(left, DOUBLE), DOUBLE
        return e.Unary(e.UnaryOp.NEG, left, left_type), left_type
    right, right_type = draw(numbers(depth - 1))
    kind = DOUBLE if DOUBLE in (left_type, right_type) else BIGINT if BIGINT in (left_type, right_type) else INTEGER
    ops = [e.BinaryOp.ADD, e.BinaryOp.SUB, e.BinaryOp.MUL, *([e.BinaryOp.DIV] if kind == DOUBLE else [])]
    return e.Binary(draw(st.sampled_from(ops)), left, right, kind), kind


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> e.Expr:
    choice = draw(st.integers(0, 6 if depth else 3))
    if choice == 0:
        return reference(FIELDS[4])
    if choice == 1:
        op = draw(st.sampled_from([e.BinaryOp.EQ, e.BinaryOp.NE]))
        return e.Binary(op, reference(FIELDS[draw(st.sampled_from([5, 6]))]), e.Literal(draw(TEXTS), STRING), BOOLEAN)
    if choice == 2:
        return e.Unary(
            draw(st.sampled_from([e.UnaryOp.IS_NULL, e.UnaryOp.IS_NOT_NULL])), reference(draw(st.sampled_from(FIELDS))), BOOLEAN
        )
    if choice == 3:
        op = draw(st.sampled_from([e.BinaryOp.EQ, e.BinaryOp.NE, e.BinaryOp.LT, e.BinaryOp.LE, e.BinaryOp.GT, e.BinaryOp.GE]))
        return e.Binary(op, draw(numbers(1))[0], draw(numbers(1))[0], BOOLEAN)
    if choice == 4:
        return e.Unary(e.UnaryOp.NOT, draw(conditions(depth - 1)), BOOLEAN)
    op = e.BinaryOp.AND if choice == 5 else e.BinaryOp.OR
    return e.Binary(op, draw(conditions(depth - 1)), draw(conditions(depth - 1)), BOOLEAN)


@st.composite
def programs(draw: st.DrawFn) -> dict[str, g.Node]:
    stream, key = g.EdgeKind.STREAM, (Column("k", STRING),)
    nodes: list[g.Node] = [
        g.Source(name="in", inputs=(), schema=g.Schema(key, FIELDS), kind=stream, topic="in", key_format=KAFKA, value_format=JSON)
    ]
    if draw(st.booleans()):
        condition = draw(conditions())
        nodes.append(g.Filter(name="where", inputs=("in",), schema=nodes[-1].schema, kind=stream, predicate=condition))
    columns: list[tuple[str, e.Expr, DataType]] = []
    for position in range(draw(st.integers(1, 4))):
        what = draw(st.integers(0, 3))
        if what == 0:
            columns.append((f"c{position}", draw(conditions()), BOOLEAN))
        elif what == 1:
            expr, kind = draw(numbers())
            columns.append((f"c{position}", expr, kind))
        else:
            field = draw(st.sampled_from(FIELDS))
            columns.append((f"c{position}", reference(field), field.type))
    schema = g.Schema(key, tuple(Column(name, kind) for name, _, kind in columns))
    pairs = tuple((name, expr) for name, expr, _ in columns)
    nodes.append(g.Project(name="select", inputs=(nodes[-1].name,), schema=schema, kind=stream, columns=pairs))
    nodes.append(
        g.Sink(name="out", inputs=("select",), schema=schema, kind=stream, topic="out", key_format=KAFKA, value_format=JSON)
    )
    return {node.name: node for node in nodes}


def both(nodes: dict[str, g.Node], chunk: Chunk, start: int, stop: int) -> tuple[Recorder, Recorder]:
    """Run a program over the same records without the kernels and with them."""
    assert kernel_loader().load()
    program = operator_program(nodes, ["in"], ["out"])
    without, with_kernels = Recorder(), Recorder()
    with kernel_loader().held_back():
        program.bind({}, without, without).process("in", chunk, start, stop)
    program.bind({}, with_kernels, with_kernels).process("in", chunk, start, stop)
    return without, with_kernels


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    programs(), st.lists(rows(), min_size=1, max_size=12), st.lists(st.integers(0, 11), min_size=ENOUGH_ROWS, max_size=90),
    st.integers(0, 20), st.sampled_from([-1, 0, 1_700_000_000_000]),
)  # fmt: skip
def test_with_and_without_kernels_put_out_and_report_the_same(
    nodes: dict[str, g.Node], found: list[bytes | None], picks: list[int], first: int, time: int
) -> None:
    plain = b'{"i":1,"big":2,"x":1.5,"Y":2.25,"ok":true,"s":"a","S2":"b","at":5}'
    values = [plain] * 200 + [found[pick % len(found)] for pick in picks] + [plain] * 40
    keys = [None if i % 7 == 0 else b"k%d" % i for i in range(len(values))]
    times = [1_000 + i for i in range(len(values))]
    times[210] = time
    chunk = Chunk.from_columns("in", keys, values, times, partition=3)
    expected, got = both(nodes, chunk, first, len(values) - 3)
    assert sorted(got.problems, key=str) == sorted(expected.problems, key=str)
    assert got.outputs == expected.outputs


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(FLOATS, st.floats(0.001, 1e16), st.floats(0.05, 100)), min_size=64, max_size=64))
def test_doubles_are_written_as_the_exact_form_writes_them(numbers: list[float]) -> None:
    assert kernel_loader().load()
    loaded = kernel_loader().loaded()
    assert loaded is not None
    module = loaded.json
    label = np.frombuffer(b"{" + bytes(8), np.uint8)
    count, data, values = len(numbers), np.empty(len(numbers) * 64, np.uint8), np.array(numbers)
    columns = np.array([[0, values.ctypes.data, 0]])
    keys, starts, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int32)
    no_keys, kinds = np.full(count, -1, np.int32), np.array([module.DOUBLE])
    module.write(np.arange(count), keys, no_keys, label, np.array([1]), kinds, columns, data, keys, starts, sizes)
    written = data.tobytes()
    sure = [i for i in range(count) if sizes[i] >= 0]
    texts = [written[starts[i] : starts[i] + sizes[i]] for i in sure]
    assert texts == [b"{" + msgspec.json.encode(numbers[i]) + b"}" for i in sure]


def projected(expr: e.Expr, kind: DataType) -> dict[str, g.Node]:
    """A program that writes one expression of every row."""
    stream, schema = g.EdgeKind.STREAM, g.Schema((Column("k", STRING),), (Column("c", kind), Column("at", TIMESTAMP)))
    source = g.Source(
        name="in", schema=g.Schema(schema.key, FIELDS), kind=stream, topic="in", key_format=KAFKA, value_format=JSON
    )
    where = g.Filter(name="where", inputs=("in",), schema=source.schema, kind=stream, predicate=e.Literal(True, BOOLEAN))
    columns = (("c", expr), ("at", reference(FIELDS[7])))
    select = g.Project(name="select", inputs=("where",), schema=schema, kind=stream, columns=columns)
    sink = g.Sink(name="out", inputs=("select",), schema=schema, kind=stream, topic="out", key_format=KAFKA, value_format=JSON)
    return {node.name: node for node in (source, where, select, sink)}


I, BIG, X = (reference(column) for column in FIELDS[:3])
TENFOLD = e.Binary(e.BinaryOp.MUL, BIG, e.Literal(10, BIGINT), BIGINT)


@pytest.mark.parametrize(
    ("expr", "kind"),
    [
        (e.Binary(e.BinaryOp.ADD, I, I, INTEGER), INTEGER),
        (e.Binary(e.BinaryOp.MUL, I, I, INTEGER), INTEGER),
        (e.Unary(e.UnaryOp.NEG, I, INTEGER), INTEGER),
        (e.Binary(e.BinaryOp.MUL, BIG, BIG, BIGINT), BIGINT),
        (e.Binary(e.BinaryOp.MUL, e.Binary(e.BinaryOp.MUL, BIG, BIG, BIGINT), X, DOUBLE), DOUBLE),
        (e.Binary(e.BinaryOp.DIV, X, I, DOUBLE), DOUBLE),
        (e.Binary(e.BinaryOp.DIV, I, X, DOUBLE), DOUBLE),
        (e.Binary(e.BinaryOp.GT, e.Binary(e.BinaryOp.ADD, BIG, BIG, BIGINT), X, BOOLEAN), BOOLEAN),
        (
            e.Binary(
                e.BinaryOp.EQ,
                e.Binary(e.BinaryOp.ADD, TENFOLD, e.Literal(1, BIGINT), BIGINT),
                e.Binary(e.BinaryOp.MUL, e.Cast(BIG, DOUBLE), e.Literal(10.0, DOUBLE), DOUBLE),
                BOOLEAN,
            ),
            BOOLEAN,
        ),
        (X, DOUBLE),
        (reference(FIELDS[5]), STRING),
        (e.Unary(e.UnaryOp.NOT, reference(FIELDS[4]), BOOLEAN), BOOLEAN),
    ],
)  # fmt: skip
def test_wraps_zeros_and_inexact_comparisons_are_the_same(expr: e.Expr, kind: DataType) -> None:
    ints = [2**31 - 1, -(2**31), 65537, 46341, -46341, 0, 1, 7]
    bigs = [10**15 - 2, 10**15 - 1, 1 - 10**15, 3_037_000_500, 0, 900_719_925_474_099, 900_719_925_474_100]
    values: list[bytes | None] = [
        b'{"i":%d,"big":%d,"x":%s,"ok":true,"s":"a","at":%d}' % (i, big, x, n)
        for n, (i, big, x) in enumerate((i, big, x) for i in ints for big in bigs for x in (b"0.1", b"3", b"0", b"-2.75"))
    ]
    later = b',"x":null,"i":null,"ok":null,"s":null}'
    for n in range(5, len(values), 23):
        whole = values[n]
        assert whole is not None
        values[n] = whole[:-1] + later
    chunk = Chunk.from_columns("in", [b"k"] * len(values), values, [1] * len(values), partition=0)
    expected, got = both(projected(expr, kind), chunk, 0, len(values))
    assert len(expected.outputs) == len(values)
    assert got.outputs == expected.outputs
    assert sorted(got.problems, key=str) == sorted(expected.problems, key=str)


class Event(msgspec.Struct):
    id: int
    user: str
    ms: int
    price: float
    ok: bool


def test_plain_rows_are_not_left_to_the_exact_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    app = lf.App("t1")
    events = app.stream("events", Event, key=str)
    events.filter(col.ok & (col.ms > 100)).select(col.id, col.user, gross=col.price * 1.2).to("out")
    program = app.plan().subtopologies[0].program
    assert kernel_loader().load()
    rows = [b'{"id":%d,"user":"u%d","ms":%d,"price":%.2f,"ok":true}' % (i, i, i, i / 7) for i in range(500)]
    rows[200] = b'{"id":200,"user":"\\u0041","ms":200,"price":1e2,"ok":true}'
    chunk = Chunk.from_columns("events", [b"k"] * 500, list(rows), [1] * 500)
    taken: list[Any] = []
    make = decode.exact_decoder

    def counting(*args: Any) -> Any:
        run = make(*args)
        return lambda datas, report: taken.extend(datas) or run(datas, report)

    monkeypatch.setattr(decode, "exact_decoder", counting)
    recorder, expected = Recorder(), Recorder()
    program.bind({}, recorder, recorder).process(next(iter(program.sources)), chunk, 0, 500)
    assert taken == [rows[200]]
    with kernel_loader().held_back():
        program.bind({}, expected, expected).process(next(iter(program.sources)), chunk, 0, 500)
    assert recorder.outputs == expected.outputs
    assert len(recorder.outputs) == 399
