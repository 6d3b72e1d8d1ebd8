"""With the kernels and without them: branches, re-keying, columns beside the value, functions, CASE and casts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logflume.log.records import Chunk
from logflume.log.schemas import BIGINT, BOOLEAN, DOUBLE, INTEGER, STRING, TIMESTAMP, Column, DataType
from logflume.streams import expr as e
from logflume.streams import graph as g
from logflume.streams.functions.nulls import coalesce, nullif
from logflume.streams.functions.numeric import absolute_bigint, absolute_integer
from logflume.streams.functions.text import concat, concat_text, contains, ends_with, lcase, length, starts_with, ucase
from logflume.streams.kernels import kernel_loader
from logflume.streams.operators import operator_program

from ._kernel_rows import ENOUGH_ROWS, FIELDS, FLOATS, JSON, KAFKA, TEXTS, Recorder, rows

numba = pytest.importorskip("numba", reason="the kernels need numba")

STREAM = g.EdgeKind.STREAM
KEY = Column("k", STRING)
PLAIN_TEXTS = st.sampled_from(["", "a", "b", "u0", "A b", "~"])
ORDERINGS = [e.BinaryOp.EQ, e.BinaryOp.NE, e.BinaryOp.LT, e.BinaryOp.LE, e.BinaryOp.GT, e.BinaryOp.GE, e.BinaryOp.IS_DISTINCT]
INTEGER_OPS = [
    e.BinaryOp.ADD, e.BinaryOp.SUB, e.BinaryOp.MUL, e.BinaryOp.DIV, e.BinaryOp.MOD, e.BinaryOp.FLOOR_DIV, e.BinaryOp.FLOOR_MOD,
]  # fmt: skip
DOUBLE_OPS = [e.BinaryOp.ADD, e.BinaryOp.SUB, e.BinaryOp.MUL, e.BinaryOp.DIV, e.BinaryOp.TRUE_DIV]
NUMBERS = (INTEGER, BIGINT, DOUBLE)
ABS = {INTEGER: absolute_integer, BIGINT: absolute_bigint, DOUBLE: abs}


def call(name: str, impl: Any, type: DataType, *args: e.Expr, handles_null: bool = False) -> e.Call:
    return e.Call(e.Function(name, impl, handles_null=handles_null, kernel=name), args, type)


def columns_of(type: DataType) -> list[e.Expr]:
    """The columns of a type that a source has: of the value, the key, and beside them."""
    found: list[e.Expr] = [e.ColumnRef(e.Side.VALUE, c.name, c.type) for c in FIELDS if c.type == type]
    if type == STRING:
        found.append(e.ColumnRef(e.Side.KEY, KEY.name, STRING))
    if type == BIGINT:
        found += [e.ColumnRef(e.Side.META, name, BIGINT) for name in (e.Meta.ROWTIME, e.Meta.ROWOFFSET)]
    if type == INTEGER:
        found.append(e.ColumnRef(e.Side.META, e.Meta.ROWPARTITION, INTEGER))
    return found


@st.composite
def constants(draw: st.DrawFn, type: DataType) -> e.Expr:
    value: Any
    if type == STRING:
        value = draw(PLAIN_TEXTS)
    elif type == BOOLEAN:
        value = draw(st.booleans())
    elif type == DOUBLE:
        value = draw(FLOATS)
    else:
        value = draw(
            st.sampled_from([0, 1, -1, 2, -3, 7, 2**31 - 1, -(2**31), *([2**63 - 1, -(2**63)] if type == BIGINT else [])])
        )
    return e.Literal(value, type)


@st.composite
def values(draw: st.DrawFn, type: DataType, depth: int = 3) -> e.Expr:
    """An expression of a type that the kernels hold."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.one_of(st.sampled_from(columns_of(type)), st.sampled_from(columns_of(type)), constants(type)))
    less = depth - 1
    which = draw(st.integers(0, 3))
    if which == 0:
        branches = draw(st.lists(st.tuples(values(BOOLEAN, less), values(type, less)), min_size=1, max_size=2))
        return e.Case(tuple(branches), draw(st.one_of(values(type, less), st.just(e.Literal(None, type)))), type)
    if which == 1:
        if draw(st.booleans()):
            parts = draw(st.lists(values(type, less), min_size=2, max_size=3))
            return call("coalesce", coalesce, type, *parts, handles_null=True)
        return call("nullif", nullif, type, draw(values(type, less)), draw(values(type, less)), handles_null=True)
    if type == BOOLEAN:
        return draw(_conditions(less))
    if type == STRING:
        return draw(_texts(less))
    return draw(_numbers(type, less))


@st.composite
def _conditions(draw: st.DrawFn, less: int) -> e.Expr:
    which = draw(st.integers(0, 5))
    if which == 0:
        op = draw(st.sampled_from([e.BinaryOp.AND, e.BinaryOp.OR]))
        return e.Binary(op, draw(values(BOOLEAN, less)), draw(values(BOOLEAN, less)), BOOLEAN)
    if which == 1:
        return e.Unary(e.UnaryOp.NOT, draw(values(BOOLEAN, less)), BOOLEAN)
    if which == 2:
        op = draw(st.sampled_from([e.UnaryOp.IS_NULL, e.UnaryOp.IS_NOT_NULL]))
        return e.Unary(op, draw(values(draw(st.sampled_from([*NUMBERS, STRING, BOOLEAN, TIMESTAMP])), 1)), BOOLEAN)
    if which == 3:
        name, impl = draw(st.sampled_from([("contains", contains), ("starts_with", starts_with), ("ends_with", ends_with)]))
        return call(name, impl, BOOLEAN, draw(values(STRING, less)), draw(st.one_of(values(STRING, 1), constants(STRING))))
    op = draw(st.sampled_from(ORDERINGS))
    if which == 4:
        other = draw(st.one_of(values(STRING, less), TEXTS.map(lambda text: e.Literal(text, STRING))))
        return e.Binary(op, draw(values(STRING, less)), other, BOOLEAN)
    left = draw(st.sampled_from([*NUMBERS, TIMESTAMP]))
    right = draw(st.sampled_from(NUMBERS))
    return e.Binary(op, draw(values(left, less)), draw(values(right, less)), BOOLEAN)


@st.composite
def _texts(draw: st.DrawFn, less: int) -> e.Expr:
    which = draw(st.integers(0, 3))
    if which == 0:
        name, impl = draw(st.sampled_from([("upper", ucase), ("lower", lcase)]))
        return call(name, impl, STRING, draw(values(STRING, less)))
    if which == 1:
        return e.Cast(draw(values(draw(st.sampled_from([INTEGER, BIGINT, BOOLEAN])), less)), STRING)
    left, right = draw(values(STRING, less)), draw(values(STRING, less))
    if which == 2:
        return call("concat", concat_text, STRING, left, right)
    return call("concat", concat, STRING, left, right, draw(values(STRING, less)), handles_null=True)


@st.composite
def _numbers(draw: st.DrawFn, type: DataType, less: int) -> e.Expr:
    if type == TIMESTAMP:
        return e.Cast(draw(values(BIGINT, less)), TIMESTAMP)
    which = draw(st.integers(0, 4))
    if which == 0:
        return e.Unary(e.UnaryOp.NEG, draw(values(type, less)), type)
    if which == 1:
        return call("abs", ABS[type], type, draw(values(type, less)))
    if which == 2 and type == DOUBLE:
        return e.Cast(draw(values(draw(st.sampled_from([INTEGER, BIGINT])), less)), DOUBLE)
    if which == 2:
        other = draw(st.sampled_from([STRING, DOUBLE, BIGINT if type == INTEGER else INTEGER]))
        return e.Cast(draw(values(other, less)), type)
    if which == 3 and type == INTEGER:
        return call("length", length, INTEGER, draw(values(STRING, less)))
    if type == DOUBLE:
        op = draw(st.sampled_from(DOUBLE_OPS))
        left, right = draw(st.sampled_from([(DOUBLE, DOUBLE), (BIGINT, DOUBLE), (DOUBLE, INTEGER)]))
        if op is e.BinaryOp.TRUE_DIV and draw(st.booleans()):
            left = right = INTEGER
        return e.Binary(op, draw(values(left, less)), draw(values(right, less)), DOUBLE)
    left = INTEGER if type == INTEGER else draw(st.sampled_from([INTEGER, BIGINT]))
    return e.Binary(draw(st.sampled_from(INTEGER_OPS)), draw(values(left, less)), draw(values(type, less)), type)


@st.composite
def branch(draw: st.DrawFn, number: int, parent: g.Node) -> list[g.Node]:
    """Nodes from a parent to a topic of its own; the last one writes."""
    nodes: list[g.Node] = [parent]

    def last() -> str:
        return nodes[-1].name

    if draw(st.booleans()):
        nodes.append(
            g.Filter(name=f"where{number}", inputs=(last(),), schema=parent.schema, kind=STREAM, predicate=draw(values(BOOLEAN)))
        )
    key = KEY
    if draw(st.booleans()):
        key = Column(draw(st.sampled_from(["k", "other"])), draw(st.sampled_from([STRING, INTEGER, BIGINT])))
        exprs = ((key.name, draw(values(key.type, 2))),)
        nodes.append(
            g.Rekey(name=f"by{number}", inputs=(last(),), schema=g.Schema((key,), parent.schema.value), kind=STREAM, key=exprs)
        )
    types = draw(st.lists(st.sampled_from([*NUMBERS, STRING, BOOLEAN, TIMESTAMP]), min_size=1, max_size=3))
    after_rekey = key is not KEY
    columns = []
    for place, type in enumerate(types):
        drawn = draw(values(type))
        if after_rekey and any(side is e.Side.KEY for side, _ in e.columns_used(drawn)):
            drawn = e.Literal({STRING: "x", BOOLEAN: True, DOUBLE: 1.5}.get(type, 1), type)
        columns.append((f"c{place}", drawn))
    schema = g.Schema((key,), tuple(Column(name, type) for (name, _), type in zip(columns, types, strict=True)))
    nodes.append(g.Project(name=f"select{number}", inputs=(last(),), schema=schema, kind=STREAM, columns=tuple(columns)))
    common: Any = {"inputs": (last(),), "schema": schema, "kind": STREAM, "topic": f"out{number}", "value_format": JSON}
    if draw(st.booleans()):
        keeps = draw(st.booleans())
        nodes.append(g.Repartition(name=f"out{number}", partitions=None, key_format=KAFKA, keeps_null_keys=keeps, **common))
    else:
        time = draw(st.one_of(st.none(), st.just(e.ColumnRef(e.Side.META, e.Meta.ROWTIME, BIGINT))))
        nodes.append(g.Sink(name=f"out{number}", key_format=KAFKA, timestamp=time, **common))
    return nodes[1:]


@st.composite
def split(draw: st.DrawFn, parent: g.Node) -> list[g.Node]:
    """A split, and its branches."""
    common: Any = {"schema": parent.schema, "kind": STREAM}
    tests = tuple(draw(st.lists(values(BOOLEAN), min_size=1, max_size=3)))
    made = g.Split(name="split", inputs=(parent.name,), predicates=tests, **common)
    numbers = [*range(len(tests)), g.REST]
    return [made, *(g.Branch(name=f"split-{number}", inputs=("split",), number=number, **common) for number in numbers)]


@st.composite
def programs(draw: st.DrawFn) -> dict[str, g.Node]:
    time = draw(st.sampled_from([None, None, e.ColumnRef(e.Side.VALUE, "at", TIMESTAMP)]))
    source = g.Source(
        name="in", schema=g.Schema((KEY,), FIELDS), kind=STREAM, topic="in", key_format=KAFKA, value_format=JSON, timestamp=time
    )
    nodes: list[g.Node] = [source]
    parents = [source, *(draw(split(source)) if draw(st.booleans()) else ())]
    nodes += parents[1:]
    for number in range(draw(st.integers(1, 3))):
        parent = draw(st.sampled_from([node for node in parents if not isinstance(node, g.Split)]))
        nodes += draw(branch(number, parent))
    return {node.name: node for node in nodes}


def by_node(recorder: Recorder) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for output in recorder.outputs:
        found.setdefault(output[0], []).append(output[1:])
    return found


def run_both(nodes: dict[str, g.Node], chunk: Chunk, start: int, stop: int) -> tuple[Recorder, Recorder]:
    """Run a program over the same records without the kernels and with them."""
    assert kernel_loader().load()
    program = operator_program(nodes, ["in"], [name for name in nodes if name.startswith("out")])
    without, with_kernels = Recorder(), Recorder()
    with kernel_loader().held_back():
        program.bind({}, without, without).process("in", chunk, start, stop)
    program.bind({}, with_kernels, with_kernels).process("in", chunk, start, stop)
    return without, with_kernels


KEYS = st.one_of(st.none(), st.sampled_from([b"", b"a", b"u00001", b"B"]), st.binary(max_size=3))


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    programs(), st.lists(rows(), min_size=1, max_size=10), st.lists(st.integers(0, 9), min_size=ENOUGH_ROWS, max_size=80),
    st.lists(KEYS, min_size=1, max_size=6), st.sampled_from([-1, 0, 1_700_000_000_000]),
)  # fmt: skip
def test_with_and_without_kernels_put_out_and_report_the_same_in_every_branch(
    nodes: dict[str, g.Node], found: list[bytes | None], picks: list[int], keys: list[bytes | None], time: int
) -> None:
    plain = [
        b'{"i":%d,"big":%d,"x":%d.5,"Y":2.25,"ok":%s,"s":"a","S2":"Ab%d","at":%d}' % (n, -n, n, [b"true", b"false"][n % 2], n, n)
        for n in range(-5, 95)
    ]
    data = [*plain, *plain, *(found[pick % len(found)] for pick in picks), *plain[:40]]
    record_keys = [b"k%d" % n if n < 150 else keys[n % len(keys)] for n in range(len(data))]
    times = [1_000 + n for n in range(len(data))]
    times[210] = time
    chunk = Chunk.from_columns("in", record_keys, data, times, partition=3)
    expected, got = run_both(nodes, chunk, 7, len(data) - 3)
    assert sorted(got.problems, key=str) == sorted(expected.problems, key=str)
    assert by_node(got) == by_node(expected)


def select(*columns: tuple[str, e.Expr, DataType], where: e.Expr | None = None) -> dict[str, g.Node]:
    """A program that writes columns of the rows that pass."""
    source = g.Source(name="in", schema=g.Schema((KEY,), FIELDS), kind=STREAM, topic="in", key_format=KAFKA, value_format=JSON)
    nodes: list[g.Node] = [source]
    if where is not None:
        nodes.append(g.Filter(name="where", inputs=("in",), schema=source.schema, kind=STREAM, predicate=where))
    schema = g.Schema((KEY,), tuple(Column(name, type) for name, _, type in columns))
    exprs = tuple((name, expr) for name, expr, _ in columns)
    nodes.append(g.Project(name="select", inputs=(nodes[-1].name,), schema=schema, kind=STREAM, columns=exprs))
    nodes.append(
        g.Sink(name="out", inputs=("select",), schema=schema, kind=STREAM, topic="o", key_format=KAFKA, value_format=JSON)
    )
    return {node.name: node for node in nodes}


def test_a_constant_that_is_null_in_some_rows_is_compared_like_any_text() -> None:
    plain, key = e.Literal("a", STRING), columns_of(STRING)[0]
    perhaps = call("nullif", nullif, STRING, plain, key, handles_null=True)
    same = e.Binary(e.BinaryOp.EQ, perhaps, plain, BOOLEAN)
    data: list[bytes | None] = [b'{"s":"%s","Y":1,"S2":""}' % [b"a", b"b"][n % 2] for n in range(80)]
    chunk = Chunk.from_columns("in", [b"k"] * 80, data, [1] * 80, partition=0)
    expected, got = run_both(select(("c", same, BOOLEAN), ("p", perhaps, STRING)), chunk, 0, 80)
    assert got.outputs == expected.outputs
    assert len(got.outputs) == 80


def test_what_is_not_evaluated_is_no_problem() -> None:
    """A division by zero in the branch not taken, behind AND, or of a row that a filter drops."""
    big, i = columns_of(BIGINT)[0], columns_of(INTEGER)[0]
    quotient = e.Binary(e.BinaryOp.DIV, big, i, BIGINT)
    is_zero = e.Binary(e.BinaryOp.EQ, i, e.Literal(0, INTEGER), BOOLEAN)
    safe = e.Case(((is_zero, e.Literal(-1, BIGINT)),), quotient, BIGINT)
    ahead = e.Binary(
        e.BinaryOp.AND, e.Unary(e.UnaryOp.NOT, is_zero, BOOLEAN), e.Binary(e.BinaryOp.GT, quotient, big, BOOLEAN), BOOLEAN
    )
    assert kernel_loader().load()
    data: list[bytes | None] = [b'{"i":%d,"big":%d,"Y":1,"S2":""}' % (n % 3, n) for n in range(90)]
    chunk = Chunk.from_columns("in", [b"k"] * 90, data, [1] * 90, partition=0)
    for nodes in (select(("c", safe, BIGINT)), select(("c", ahead, BOOLEAN)), select(("c", quotient, BIGINT), where=ahead)):
        expected, got = run_both(nodes, chunk, 0, 90)
        assert got.outputs == expected.outputs
        assert got.problems == expected.problems == []


def test_fields_that_are_left_out_are_null_and_other_spellings_are_found() -> None:
    """Y and S2 are looked for in any spelling."""
    double, text = columns_of(DOUBLE)[1], columns_of(STRING)[1]
    nodes = select(("Y", double, DOUBLE), ("S2", text, STRING))
    sparse: list[bytes | None] = [b'{"i":1}', b'{"Y":2.5}', b'{"S2":"a","Z":1}', b'{"y":1.5,"s2":"b"}', b"{}"]
    chunk = Chunk.from_columns("in", [b"k"] * 100, sparse * 20, [1] * 100, partition=0)
    mixed = Chunk.from_columns(
        "in", [b"k"] * 100, [*sparse * 19, b'{"Y":1,"S2":"a"}', *[b'{"s2":"c"}'] * 4], [1] * 100, partition=0
    )
    odd = [b'{"i":2,"S2":"x","y":3,"Y":4}', b'{"\\u0059":5}', b'{"s2":"d","Y":null}']
    for place, value in enumerate(odd):
        mixed = Chunk.from_columns(
            "in", mixed.keys(), [*mixed.values()[: place * 9], value, *mixed.values()[place * 9 + 1 :]], [1] * 100
        )
    for each in (chunk, mixed):
        expected, got = run_both(nodes, each, 0, 100)
        assert got.outputs == expected.outputs
        assert sorted(got.problems, key=str) == sorted(expected.problems, key=str)
    variants: dict[str, g.Node] = select(("S2", text, STRING))
    cased = Chunk.from_columns(
        "in", [b"k"] * 80, [b'{"S2":"a"}', b'{"Ss":"a"}', b'{"s2":"b"}', b'{"i":1}'] * 20, [1] * 80, partition=0
    )
    expected, got = run_both(variants, cased, 0, 80)
    assert got.outputs == expected.outputs
