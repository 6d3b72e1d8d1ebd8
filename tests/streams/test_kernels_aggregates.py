"""Aggregates with the kernels and without them: same outputs, reports, changelogs and stores, across restarts."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logflume.streams as lf
from logflume.log import CorruptLog, InvalidInput
from logflume.log.records import Chunk, TopicPartition
from logflume.log.schemas import BIGINT, BOOLEAN, DOUBLE, INTEGER, STRING, Column
from logflume.streams import expr as e
from logflume.streams import graph as g
from logflume.streams.functions import totals as a
from logflume.streams.kernels import kernel_loader
from logflume.streams.operators import BoundProgram, operator_program, timeline
from logflume.streams.operators.aggregate import AggregateOperator, AggregateWork
from logflume.streams.seams import Entry, Program
from logflume.streams.state import Checkpoint, TaskState
from logflume.streams.state.disk import TaskDb
from logflume.streams.state.store import Store
from tests.streams.test_kernels_stateless import FIELDS, JSON, KAFKA, conditions, numbers, rows

numba = pytest.importorskip("numba", reason="the kernels need numba")

KEY = (Column("k", STRING),)
STREAM, TABLE = g.EdgeKind.STREAM, g.EdgeKind.TABLE
START_MS = 1_700_000_000_000


class Recorder:
    """Keeps what a program puts out and reports, in order."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.problems: list[Any] = []

    def send(
        self, node: str, keys: Sequence[Any], values: Sequence[Any], timestamps_ms: Sequence[int], *,
        headers: Sequence[Any] | None = None, causes: Sequence[int] | None = None, topic: str | None = None,
    ) -> None:  # fmt: skip
        each = headers or [()] * len(keys)
        self.outputs += zip([node] * len(keys), keys, values, timestamps_ms, causes or [None] * len(keys), each, strict=True)

    def send_columns(self, node: str, records: Chunk, *, causes: Any = None, topic: str | None = None) -> None:
        self.send(
            node, records.keys(), records.values(), records.timestamps_ms.tolist(),
            causes=None if causes is None else causes.tolist(),
        )  # fmt: skip

    def report(self, reason: str, node: str, topic: str, partition: int, offset: int, cause: object) -> None:
        self.problems.append((reason, node, topic, partition, offset, str(cause)))


def _node(output: Any) -> str:
    return str(output[0])


def _offset(problem: Any) -> Any:
    return problem[1:5]


class Task:
    """A program over a state directory of its own; what it did since the last commit can be compared."""

    def __init__(self, program: Program, path: Path, *, memory_bytes: int, has_kernels: bool) -> None:
        self.program, self.path, self.memory_bytes, self.has_kernels = program, path, memory_bytes, has_kernels
        self.offset = 0
        self.open()

    def open(self) -> None:
        self.recorder = Recorder()
        self.state = TaskState(
            self.path, application="app", task="t.0", specs=self.program.stores, memory_bytes=1 << 20, wall_s=lambda: 0.0
        )
        for store in self.state.stores.values():
            store.memory_bytes = self.memory_bytes
        self.state.preload()
        self.function = self.program.bind(self.state.stores, self.recorder, self.recorder)

    def process(self, chunk: Chunk, start: int, stop: int) -> None:
        with self.kernels():
            self.function.process("in", chunk, start, stop)

    def kernels(self) -> AbstractContextManager[None]:
        return nullcontext() if self.has_kernels else kernel_loader().held_back()

    def commit(self) -> tuple[Any, ...]:
        """Commit; return what came out and what was written."""
        with self.kernels():
            self.function.flush()
        dirty = self.state.encode_dirty()
        changelog = {name: (each.keys, each.values, each.timestamps_ms, each.deleted()) for name, each in dirty.items()}
        sent = {name: list(each.chunk("changelog").records()) for name, each in dirty.items()}
        self.state.commit(dirty, Checkpoint({TopicPartition("in", 0): self.offset}))
        found = (sorted(self.recorder.outputs, key=_node), sorted(self.recorder.problems, key=_offset), changelog, sent)
        stores = {name: (s.stream_time_ms, list(map(repr, s.range(b"", None)))) for name, s in self.state.stores.items()}
        on_disk = list(self.state.db.scan(b"", b"\xff")), stores
        self.recorder.outputs, self.recorder.problems = [], []
        return (*found, *on_disk)

    def restart(self) -> None:
        self.state.close()
        self.open()

    @property
    def is_columnar(self) -> bool:
        return any(store.columns is not None for store in self.state.stores.values())


@st.composite
def aggregations(draw: st.DrawFn) -> g.Aggregation:
    name = draw(st.sampled_from(["count", "count", "sum", "mean", "min", "max"]))
    if name == "count":
        counted = draw(st.sampled_from([None, FIELDS[2], FIELDS[5]]))
        args = () if counted is None else (e.ColumnRef(e.Side.VALUE, counted.name, counted.type),)
        return g.Aggregation("n", a.count(), args)
    expr, kind = draw(numbers(1))
    make = {"sum": a.total, "mean": a.mean, "min": a.least, "max": a.greatest}[name]
    return g.Aggregation(name, make(kind), (expr,))


WINDOWS = st.one_of(
    st.none(),
    st.builds(g.TimeWindow, st.just(10_000), st.just(10_000), st.sampled_from([0, 3_000, 20_000]), st.sampled_from([0, 60_000])),
    st.builds(g.TimeWindow, st.just(10_000), st.sampled_from([4_000, 5_000]), st.sampled_from([0, 3_000])),
    st.builds(g.SlidingWindow, st.sampled_from([300, 2_000]), st.sampled_from([0, 3_000, 20_000]), st.sampled_from([0, 60_000])),
    st.builds(g.SessionWindow, st.sampled_from([300, 2_000]), st.sampled_from([0, 3_000, 20_000]), st.sampled_from([0, 60_000])),
)


@st.composite
def programs(draw: st.DrawFn) -> dict[str, g.Node]:
    source = g.Source(name="in", schema=g.Schema(KEY, FIELDS), kind=STREAM, topic="in", key_format=KAFKA, value_format=JSON)
    nodes: list[g.Node] = [source]
    if draw(st.booleans()):
        nodes.append(g.Filter(name="where", inputs=("in",), schema=source.schema, kind=STREAM, predicate=draw(conditions())))
    parts = draw(st.lists(aggregations(), min_size=1, max_size=3))
    named = tuple(g.Aggregation(f"{part.name}{i}", part.aggregator, part.args) for i, part in enumerate(parts))
    window = draw(WINDOWS)
    schema = g.Schema(KEY, tuple(Column(part.name, part.aggregator.type) for part in named), window=window)
    emit = draw(st.sampled_from([g.Emit.COMMIT, g.Emit.UPDATE, *([g.Emit.FINAL] if window else [])]))
    nodes.append(
        g.Aggregate(
            name="counted",
            inputs=(nodes[-1].name,),
            schema=schema,
            kind=TABLE,
            store="counts",
            aggregations=named,
            window=window,
            emit=emit,
        )
    )
    table = nodes[-1]
    if draw(st.integers(0, 3)) == 0:
        nodes += other_branches(nodes[-2], draw(st.booleans()))
    if emit is g.Emit.COMMIT and draw(st.booleans()):
        nodes += draw(having(table))
        table = nodes[-1]
    nodes.append(
        g.Sink(
            name="out",
            inputs=(table.name,),
            schema=table.schema,
            kind=table.kind,
            topic="out",
            key_format=KAFKA,
            value_format=JSON,
        )
    )  # fmt: skip
    return {node.name: node for node in nodes}


def other_branches(source: g.Node, is_windowed: bool) -> list[g.Node]:
    """What else may follow the source: an aggregate of its own, and a stream of its records."""
    window = g.TimeWindow(7_000, 7_000, 1_000) if is_windowed else None
    schema = g.Schema(KEY, (Column("n", BIGINT),), window=window)
    counts = (g.Aggregation("n", a.count()),)
    table = g.Aggregate(
        name="more", inputs=(source.name,), schema=schema, kind=TABLE, store="more", aggregations=counts, window=window
    )
    sink = g.Sink(name="more-out", inputs=("more",), schema=schema, kind=TABLE, topic="more", key_format=KAFKA, value_format=JSON)
    columns = tuple((c.name, e.ColumnRef(e.Side.VALUE, c.name, c.type)) for c in FIELDS[:2])
    kept = g.Project(name="kept", inputs=(source.name,), schema=g.Schema(KEY, FIELDS[:2]), kind=STREAM, columns=columns)
    every = g.Sink(
        name="all", inputs=("kept",), schema=kept.schema, kind=STREAM, topic="all", key_format=KAFKA, value_format=JSON
    )
    return [table, sink, kept, every]


@st.composite
def having(draw: st.DrawFn, table: g.Node) -> list[g.Node]:
    """What may follow an aggregate: a stream of its results, filtered and projected (or a filtered table)."""
    first = table.schema.value[0]
    result = e.ColumnRef(e.Side.VALUE, first.name, first.type)
    above = e.Binary(e.BinaryOp.GT, result, e.Literal(draw(st.sampled_from([0, 3, -(2**31)])), INTEGER), BIGINT)
    if draw(st.integers(0, 4)) == 0:
        return [g.Filter(name="some", inputs=(table.name,), schema=table.schema, kind=TABLE, predicate=above)]
    stream = g.ToStream(name="changes", inputs=(table.name,), schema=table.schema, kind=STREAM)
    some = g.Filter(name="some", inputs=("changes",), schema=table.schema, kind=STREAM, predicate=above)
    share = e.Binary(e.BinaryOp.DIV, e.Literal(1.0, DOUBLE), result, DOUBLE)
    beside = ["ROWTIME", *(["WINDOWSTART", "WINDOWEND"] if table.schema.window else [])]
    outer = (Column("share", DOUBLE), first, *(Column(name, BIGINT) for name in beside))
    times = ((name, e.ColumnRef(e.Side.META, name, BIGINT)) for name in beside)
    schema, columns = g.Schema(KEY, outer, window=table.schema.window), (("share", share), (first.name, result), *times)
    select = g.Project(name="select", inputs=("some",), schema=schema, kind=STREAM, columns=columns)
    return [stream, some, select]


PLAIN = [
    b'{"i":%d,"big":%d,"x":%s,"Y":%d.25,"ok":%s,"s":"%s","S2":"b","at":5}' % (i, big, x, i, ok, s)
    for i, big, x, ok, s in (
        (1, 10**14, b"1.5", b"true", b"a"), (-7, -5, b"0.1", b"true", b"b"), (2**31 - 1, 3, b"-2.75", b"false", b"a"),
        (0, 0, b"0.0", b"true", b""), (46341, 10**15 - 1, b"3", b"true", b"a"), (12, 7, b"1000000.01", b"null", b"a"),
        (5, 7, b"null", b"true", b"a"), (9, -3, b"0.0007", b"true", b"c"),
    )
]  # fmt: skip


def chunk_of(seed: int, found: list[bytes | None], share: float, first_ms: int, size: int, keys: int, offset: int) -> Chunk:
    """A run of records: `share` of them drawn rows, others plain; few keys, some null; times that rise, with late ones."""
    rng = random.Random(seed)
    names: list[bytes | None] = [b"", b"k", b"\xffk\x00", *(b"user-%d" % i for i in range(keys))]
    values = [found[rng.randrange(len(found))] if found and rng.random() < share else rng.choice(PLAIN) for _ in range(size)]
    chosen = [None if rng.random() < 0.01 else rng.choice(names) for _ in range(size)]
    times = [max(-1, first_ms + i * 40 - (rng.randrange(40) * 1000 if rng.random() < 0.08 else 0)) for i in range(size)]
    chunk = Chunk.from_columns("in", chosen, values, times, partition=0)
    chunk.offsets = chunk.offsets + offset
    return chunk


def script(rng: random.Random) -> list[tuple[int, float, int, str]]:
    """Seed, share of drawn rows, size, and what comes after, of some runs."""
    return [
        (
            rng.randrange(2**32),
            rng.choice([0.0, 0.02, 0.02, 0.1, 0.5]),
            rng.choice([5, 300, 300, 600]),
            rng.choice(["run", "commit", "commit", "restart"]),
        )
        for _ in range(rng.randrange(3, 9))
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    programs(), st.lists(rows(), min_size=1, max_size=8), st.integers(0, 2**32), st.sampled_from([0, START_MS]),
    st.sampled_from([1_000, 1 << 20]), st.sampled_from([3, 60]), st.sampled_from([0, 100_000]),
)  # fmt: skip
def test_with_and_without_kernels_keep_and_put_out_the_same(
    nodes: dict[str, g.Node],
    found: list[bytes | None],
    seed: int,
    first_ms: int,
    memory_bytes: int,
    keys: int,
    read_at_start: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline, "_READ_AT_START", read_at_start)
        compare(nodes, found, seed, first_ms, memory_bytes, keys)


def compare(
    nodes: dict[str, g.Node], found: list[bytes | None], seed: int, first_ms: int, memory_bytes: int, keys: int
) -> list[Any]:
    """Run a script without the kernels and with them; return all outputs."""
    outputs: list[Any] = []
    assert kernel_loader().load("chains", "sessions", "sliding")
    program = operator_program(nodes, ["in"], [n.name for n in nodes.values() if isinstance(n, g.Sink)])
    with tempfile.TemporaryDirectory() as directory:
        expected, got = (
            Task(program, Path(directory) / str(has_kernels), memory_bytes=memory_bytes, has_kernels=has_kernels)
            for has_kernels in (False, True)
        )
        offset = 0
        for run, share, size, then in script(random.Random(seed)):
            chunk = chunk_of(run, found, share, first_ms + offset * 40, size, keys, offset)
            offset += size
            for task in (expected, got):
                task.offset = offset
                task.process(chunk, 0, size // 3)
                task.process(chunk, size // 3, size)
            if then != "run":
                committed = got.commit()
                assert committed == expected.commit()
                outputs += committed[0]
            if then == "restart":
                got.restart()
        assert got.commit() == expected.commit()
        for task in (expected, got):
            task.state.close()
    return outputs


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_a_filter_of_results_compares_with_those_of_the_last_commit(seed: int) -> None:
    source = g.Source(name="in", schema=g.Schema(KEY, FIELDS), kind=STREAM, topic="in", key_format=KAFKA, value_format=JSON)
    counts = (g.Aggregation("n", a.count()),)
    schema = g.Schema(KEY, (Column("n", BIGINT),))
    table = g.Aggregate(name="counted", inputs=("in",), schema=schema, kind=TABLE, store="counts", aggregations=counts)
    few = e.Binary(e.BinaryOp.LT, e.ColumnRef(e.Side.VALUE, "n", BIGINT), e.Literal(6, BIGINT), BOOLEAN)
    some = g.Filter(name="some", inputs=("counted",), schema=schema, kind=TABLE, predicate=few)
    sink = g.Sink(name="out", inputs=("some",), schema=schema, kind=TABLE, topic="out", key_format=KAFKA, value_format=JSON)
    nodes: dict[str, g.Node] = {node.name: node for node in (source, table, some, sink)}
    gone = [value for _, _, value, *_ in compare(nodes, [None], seed, START_MS, 1 << 20, 60) if value is None]
    assert gone


@pytest.mark.parametrize("window", [g.TimeWindow(10_000, 10_000, 0), g.TimeWindow(10_000, 4_000, 5_000)])
def test_the_largest_times_are_no_trap(window: g.TimeWindow, tmp_path: Path) -> None:
    source = g.Source(name="in", schema=g.Schema(KEY, FIELDS), kind=STREAM, topic="in", key_format=KAFKA, value_format=JSON)
    counts = (g.Aggregation("n", a.count()),)
    schema = g.Schema(KEY, (Column("n", BIGINT),), window=window)
    table = g.Aggregate(
        name="counted", inputs=("in",), schema=schema, kind=TABLE, store="counts", aggregations=counts, window=window
    )
    sink = g.Sink(name="out", inputs=("counted",), schema=schema, kind=TABLE, topic="out", key_format=KAFKA, value_format=JSON)
    program = operator_program({node.name: node for node in (source, table, sink)}, ["in"], ["out"])
    assert kernel_loader().load()
    times = [START_MS + i for i in range(200)]
    times[150], times[199] = 2**62, 2**63 - 1
    chunk = Chunk.from_columns("in", [b"k"] * 200, [PLAIN[0]] * 200, times)
    done = []
    for has_kernels in (False, True):
        task = Task(program, tmp_path / str(has_kernels), memory_bytes=1 << 20, has_kernels=has_kernels)
        task.process(chunk, 0, 200)
        assert task.is_columnar is has_kernels
        done.append(task.commit())
        task.state.close()
    assert done[0] == done[1]
    problems = done[0][1]
    assert {reason for reason, *_ in problems} == {"late"}
    assert {offset for *_, offset, _ in problems} == set(range(151, 199))


class Event(msgspec.Struct):
    user: str
    price: float


def test_a_store_is_taken_over_with_its_changes(tmp_path: Path) -> None:
    app = lf.App("t2")
    app.stream("events", Event, key=str).group_by_key().count().to("out")
    program = app.plan().subtopologies[0].program
    assert kernel_loader().load()
    state = TaskState(tmp_path, application="t2", task="t", specs=program.stores)
    recorder = Recorder()
    function = program.bind(state.stores, recorder, recorder)
    (source,) = program.sources
    (store,) = state.stores.values()
    chunk = Chunk.from_columns("events", [b"k%d" % (i % 3) for i in range(100)], [b"{}"] * 100, list(range(100)))
    with kernel_loader().held_back():
        function.process(source, chunk, 0, 10)
    assert store.has_changes
    assert store.columns is None
    function.process(source, chunk, 10, 100)
    assert store.columns is not None
    function.flush()
    state.commit(state.encode_dirty(), Checkpoint())
    function.process(source, chunk, 0, 100)
    assert store.get(b"k0") == Entry((68,), 99)
    assert store.resident_count == 3
    recorder.outputs.clear()
    function.flush()
    assert [value for _, _, value, *_ in recorder.outputs] == [b'{"count":68}', b'{"count":66}', b'{"count":66}']
    state.close()


def numbers_over(window: g.Window, emit: g.Emit) -> dict[str, g.Node]:
    """Aggregates of every kernel over windows that depend on the records."""
    source = g.Source(name="in", schema=g.Schema(KEY, FIELDS), kind=STREAM, topic="in", key_format=KAFKA, value_format=JSON)
    big, x = e.ColumnRef(e.Side.VALUE, "big", BIGINT), e.ColumnRef(e.Side.VALUE, "x", DOUBLE)
    parts = (
        g.Aggregation("n", a.count()), g.Aggregation("s", a.total(DOUBLE), (x,)), g.Aggregation("m", a.least(BIGINT), (big,)),
        g.Aggregation("a", a.mean(BIGINT), (big,)),
    )  # fmt: skip
    schema = g.Schema(KEY, tuple(Column(part.name, part.aggregator.type) for part in parts), window=window)
    table = g.Aggregate(
        name="counted", inputs=("in",), schema=schema, kind=TABLE, store="counts", aggregations=parts, window=window, emit=emit
    )
    sink = g.Sink(name="out", inputs=("counted",), schema=schema, kind=TABLE, topic="out", key_format=KAFKA, value_format=JSON)
    return {node.name: node for node in (source, table, sink)}


@pytest.mark.parametrize("emit", [g.Emit.COMMIT, g.Emit.UPDATE, g.Emit.FINAL])
@pytest.mark.parametrize(
    ("window", "memory_bytes", "keys"),
    [
        (g.SessionWindow(300, 3_000, 60_000), 1 << 20, 3), (g.SessionWindow(2_000, 20_000), 1_000, 60),
        (g.SlidingWindow(300, 3_000, 60_000), 1 << 20, 60), (g.SlidingWindow(2_000, 3_000), 1_000, 60),
    ],
)  # fmt: skip
def test_windows_of_numbers_that_depend_on_records(
    window: g.SessionWindow | g.SlidingWindow, emit: g.Emit, memory_bytes: int, keys: int
) -> None:
    assert compare(numbers_over(window, emit), [None], 5, START_MS, memory_bytes, keys)


DAY_MS = 24 * 3_600_000


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that gets what is read of a database by going through keys."""
    read: list[object] = []

    def counted(scan: Any) -> Any:
        def counting(*args: Any) -> Any:
            for item in scan(*args):
                read.append(item)
                yield item

        return counting

    for name in ("scan", "scan_keys", "scan_each"):
        monkeypatch.setattr(TaskDb, name, counted(getattr(TaskDb, name)))
    return read


@pytest.mark.parametrize(
    ("window", "emit", "results"),
    [
        (g.TimeWindow(1_000, 1_000, 0, DAY_MS), g.Emit.FINAL, 0),
        (g.SessionWindow(1_000, 0, DAY_MS), g.Emit.FINAL, 0),
        (g.SessionWindow(1_000, 0, DAY_MS), g.Emit.COMMIT, 2),
        (g.SlidingWindow(1_000, 0, DAY_MS), g.Emit.COMMIT, 2),
    ],
)
def test_what_a_task_reads_as_it_begins_does_not_grow_with_what_it_has(
    window: g.Window, emit: g.Emit, results: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "_READ_AT_START", 100)
    program = operator_program(numbers_over(window, emit), ["in"], ["out"])
    task = Task(program, tmp_path, memory_bytes=1_000, has_kernels=False)
    keys, day = [b"%d" % key for key in range(1_000)], START_MS - START_MS % (DAY_MS // 2)
    task.process(Chunk.from_columns("in", keys, [PLAIN[0]] * 1_000, [day] * 1_000), 0, 1_000)
    task.commit()
    task.restart()
    read = count_reads(monkeypatch)
    task.process(Chunk.from_columns("in", [b"7"], [PLAIN[0]], [day + 500]), 0, 1)
    task.function.flush()
    assert len(read) < 50
    assert len(task.recorder.outputs) == results
    task.state.close()


def test_windows_that_close_are_found_on_disk_without_reading_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With columns in memory for a few of the entries."""
    window = g.TimeWindow(DAY_MS, DAY_MS, 0)
    assert kernel_loader().load()
    program = operator_program(numbers_over(window, g.Emit.FINAL), ["in"], ["out"])
    task = Task(program, tmp_path, memory_bytes=20_000, has_kernels=True)
    keys, first = [b"%d" % key for key in range(1_000)], START_MS - START_MS % DAY_MS
    for day in range(3):
        start = first + day * DAY_MS
        task.process(Chunk.from_columns("in", keys, [PLAIN[0]] * 1_000, [start] * 1_000), 0, 1_000)
        assert task.is_columnar
        read = count_reads(monkeypatch) if day else []
        task.function.flush()
        assert len(task.recorder.outputs) == (1_000 if day else 0)
        assert len(read) < 1_200, "the windows of the last day, not those of all days"
        monkeypatch.undo()
        task.commit()
    task.state.close()


@pytest.mark.parametrize("has_kernels", [False, True])
def test_a_session_that_is_about_to_close_outlives_a_restart(has_kernels: bool, tmp_path: Path) -> None:
    nodes = numbers_over(g.SessionWindow(1_000, 2_000), g.Emit.FINAL)
    assert kernel_loader().load("chains", "sessions")
    task = Task(operator_program(nodes, ["in"], ["out"]), tmp_path, memory_bytes=1 << 20, has_kernels=has_kernels)
    ends_ms = START_MS + 3_000
    task.process(Chunk.from_columns("in", [b"a", b"b"], [PLAIN[0]] * 2, [START_MS, ends_ms]), 0, 2)
    assert task.commit()[0] == []
    task.restart()
    task.process(Chunk.from_columns("in", [b"b"], [PLAIN[0]], [ends_ms + 1]), 0, 1)
    ((_, key, *_),) = task.commit()[0]
    assert key.startswith(b"a")
    task.state.close()


@pytest.mark.parametrize("window", [g.SessionWindow(300, 3_000), g.SlidingWindow(300, 3_000)])
def test_windows_are_taken_over_with_their_changes(window: g.SessionWindow | g.SlidingWindow, tmp_path: Path) -> None:
    program = operator_program(numbers_over(window, g.Emit.COMMIT), ["in"], ["out"])
    assert kernel_loader().load("chains", "sessions", "sliding")
    chunk, done = chunk_of(1, [None], 0.0, START_MS, 600, 20, 0), []
    for has_kernels in (False, True):
        task = Task(program, tmp_path / str(has_kernels), memory_bytes=1 << 20, has_kernels=False)
        task.process(chunk, 0, 150)
        task.commit()
        task.process(chunk, 150, 300)
        task.has_kernels = has_kernels
        task.process(chunk, 300, 450)
        assert task.is_columnar is has_kernels
        committed = task.commit()
        task.process(chunk, 450, 600)
        done.append((committed, task.commit()))
        task.state.close()
    assert done[0] == done[1]


@pytest.mark.parametrize("has_kernels", [False, True])
def test_what_came_and_went_between_two_commits_is_written_nowhere(has_kernels: bool, tmp_path: Path) -> None:
    nodes = numbers_over(g.SessionWindow(1_000, 2_000), g.Emit.COMMIT)
    assert kernel_loader().load("chains", "sessions")
    task = Task(operator_program(nodes, ["in"], ["out"]), tmp_path, memory_bytes=1 << 20, has_kernels=has_kernels)
    times = [START_MS + 500 * i for i in range(5)]
    task.process(Chunk.from_columns("in", [b"a"] * 5, [PLAIN[0]] * 5, times), 0, 5)
    ((keys, _, stamps, deleted),) = task.commit()[2].values()
    assert (keys, stamps, deleted) == ([b"a" + g.WINDOW_START.pack(times[-1])], [times[-1]], [])
    task.process(Chunk.from_columns("in", [b"a"] * 2, [PLAIN[0]] * 2, [times[-1] + 500, times[-1] + 900]), 0, 2)
    ((keys, _, _, deleted),) = task.commit()[2].values()
    assert set(keys) == {b"a" + g.WINDOW_START.pack(time) for time in (times[-1], times[-1] + 900)}
    assert deleted == [b"a" + g.WINDOW_START.pack(times[-1])]
    task.state.close()


def test_what_was_held_back_between_two_commits_only_is_written_nowhere(tmp_path: Path) -> None:
    app = lf.App("held")
    counts = app.stream("events", Event, key=str).group_by_key().window(lf.tumbling(seconds=1)).count(emit="update")
    counts.suppress(lf.until_window_closes()).to("out")
    program = app.plan().subtopologies[0].program
    state = TaskState(tmp_path, application="held", task="t", specs=program.stores)
    recorder = Recorder()
    function = program.bind(state.stores, recorder, recorder)
    (source,) = program.sources
    function.process(source, Chunk.from_columns("events", [b"a", b"b"], [b"{}"] * 2, [START_MS, START_MS + 5_000]), 0, 2)
    function.flush()
    assert [key[:1] for _, key, *_ in recorder.outputs] == [b"a"]
    (held,) = (each for name, each in state.encode_dirty().items() if "suppress" in name)
    assert [key[:1] for key in held.keys] == [b"b"]
    state.close()


def whole_numbers_over(window: g.TimeWindow | None) -> dict[str, g.Node]:
    """An aggregate whose entries are merged, of every kernel, and who compares its results with those of the last commit.

    Over hopping windows it has as many state columns as can be kept: those of a range are one more.
    """
    source = g.Source(name="in", schema=g.Schema(KEY, FIELDS), kind=STREAM, topic="in", key_format=KAFKA, value_format=JSON)
    i, big, x = (e.ColumnRef(e.Side.VALUE, name, kind) for name, kind in (("i", INTEGER), ("big", BIGINT), ("x", DOUBLE)))
    parts = [
        g.Aggregation("n", a.count()), g.Aggregation("xs", a.count(), (x,)), g.Aggregation("s", a.total(BIGINT), (big,)),
        g.Aggregation("a", a.mean(INTEGER), (i,)), g.Aggregation("m", a.least(INTEGER), (i,)),
        g.Aggregation("o", a.greatest(BIGINT), (big,)),
    ]  # fmt: skip
    if window is not None and window.advance_ms < window.size_ms:
        parts += [g.Aggregation(f"m{number}", a.least(BIGINT), (big,)) for number in range(6)]
    schema = g.Schema(KEY, tuple(Column(part.name, part.aggregator.type) for part in parts), window=window)
    table = g.Aggregate(
        name="counted", inputs=("in",), schema=schema, kind=TABLE, store="counts", aggregations=tuple(parts), window=window
    )
    few = e.Binary(e.BinaryOp.LT, e.ColumnRef(e.Side.VALUE, "n", BIGINT), e.Literal(20, BIGINT), BOOLEAN)
    some = g.Filter(name="some", inputs=("counted",), schema=schema, kind=TABLE, predicate=few)
    sink = g.Sink(name="out", inputs=("some",), schema=schema, kind=TABLE, topic="out", key_format=KAFKA, value_format=JSON)
    return {node.name: node for node in (source, table, some, sink)}


NO_NUMBERS = [b'{"i":null,"big":null,"x":null}', b"{}"]
LARGE = [b'{"i":%d,"big":%d,"x":1}' % (i, big) for i, big in [(-(2**31), 2**63 - 1), (2**31 - 1, -(2**63)), (200, -200)]]


def range_of(nodes: dict[str, g.Node], chunk: Chunk, *, has_kernels: bool) -> tuple[Chunk, int, int]:
    """Return the entries that an aggregate makes of a range by itself, its stream time, and how many records are late in it."""
    operator = AggregateOperator(cast(g.Aggregate, nodes["counted"]))
    made = operator.partial()
    assert made is not None
    program = operator_program({"in": nodes["in"], "counted": made}, ["in"], [])
    store, recorder = Store(program.stores[0]), Recorder()
    with nullcontext() if has_kernels else kernel_loader().held_back():
        program.bind({"counts": store}, recorder, recorder).process("in", chunk, 0, len(chunk))
    return store.encode_dirty().chunk(""), store.stream_time_ms, late_of(recorder.problems)


def late_of(problems: list[Any]) -> int:
    return sum(1 for reason, *_ in problems if reason == "late")


def delete(task: Task, key: bytes) -> None:
    """Delete an entry that is on disk."""
    store = task.state.stores["counts"]
    store.load([key])
    entry = store.resident.get(key)
    if entry is not None and entry.state is not None:
        store.dirty.setdefault(key, entry.state)
        entry.state = None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("memory_bytes", [1, 1 << 20])
@pytest.mark.parametrize("window", [None, g.TimeWindow(10_000, 10_000, 3_000), g.TimeWindow(10_000, 4_000, 5_000, 60_000)])
def test_entries_of_ranges_are_merged_by_columns_and_as_objects_into_what_one_pass_gives(
    seed: int, memory_bytes: int, window: g.TimeWindow | None, tmp_path: Path
) -> None:
    assert kernel_loader().load()
    rng, nodes = random.Random(seed), whole_numbers_over(window)
    step_ms = rng.choice([1, 1000])  # of times: some windows close by the millisecond
    program = operator_program(nodes, ["in"], ["out"])
    whole, objects, columns = tasks = [
        Task(program, tmp_path / name, memory_bytes=memory_bytes, has_kernels=name != "objects")
        for name in ("whole", "objects", "columns")
    ]
    offset, late, merged_entries = 0, [0, 0, 0], 0
    for run, share, size, then in [*script(rng), (seed, 0.5, 5, "commit")]:
        values = NO_NUMBERS + LARGE if share < 0.5 else NO_NUMBERS
        first_ms = START_MS + offset * 40 - rng.choice([0, 0, 15_000])  # some ranges are late as a whole
        found = cast(list[bytes | None], values)
        chunk = chunk_of(run, found, max(share, 0.1), first_ms, size, 3 if seed % 2 else 60, offset)
        chunk.timestamps_ms = chunk.timestamps_ms // step_ms * step_ms
        offset += size
        whole.process(chunk, 0, size)
        if rng.random() < 0.3:
            objects.process(chunk, 0, size)
            columns.process(chunk, 0, size)
        else:
            entries, time_ms, late_inside = range_of(nodes, chunk, has_kernels=rng.random() < 0.5)
            merged_entries += len(entries)
            for number, task in enumerate(tasks[1:], 1):
                with task.kernels():
                    late[number] += late_inside + cast(BoundProgram, task.function).works["counted"].absorb(entries)
                store = task.state.stores["counts"]
                store.stream_time_ms = max(store.stream_time_ms, time_ms)
        if then == "run":
            continue
        expected, *others = committed = [task.commit() for task in tasks]
        late = [before + late_of(each[1]) for before, each in zip(late, committed, strict=True)]
        for other in others:
            assert (other[0], *other[2:]) == (expected[0], *expected[2:])
        if then == "restart":
            objects.restart()
            columns.restart()
        for task in tasks:
            for name in (b"k", b"", b"user-7"):
                delete(task, name if window is None else name + g.WINDOW_START.pack(START_MS // 20_000 * 20_000))
    assert late == [late[0]] * 3
    assert merged_entries == 0 or (columns.is_columnar, objects.is_columnar) == (True, False)
    for task in tasks:
        task.state.close()


@pytest.mark.parametrize("has_kernels", [False, True])
@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (msgspec.msgpack.encode((2, 0, 1, 2)), InvalidInput, "a store entry has format 2, this logflume reads 1"),
        (msgspec.msgpack.encode((1, 0, 1)), CorruptLog, "does not fit its columns"),
        (msgspec.msgpack.encode((1, 0, 1, 2.5)), CorruptLog, "does not fit its columns"),
    ],
)
def test_entries_of_a_range_that_another_version_wrote_are_refused(
    has_kernels: bool, value: bytes, error: type[Exception], said: str, tmp_path: Path
) -> None:
    app = lf.App("t2")
    app.stream("in", Event, key=str).group_by_key().aggregate(n=lf.count(), m=lf.count()).to("out")
    program = app.plan().subtopologies[0].program
    assert kernel_loader().load()
    task = Task(program, tmp_path, memory_bytes=1 << 20, has_kernels=has_kernels)
    (work,) = [work for work in cast(BoundProgram, task.function).works.values() if isinstance(work, AggregateWork)]
    good = msgspec.msgpack.encode((1, 0, 1, 2))
    with task.kernels(), pytest.raises(error, match=said):
        work.absorb(Chunk.from_columns("", [b"a", b"b"], [good, value], [0, 0]))
    task.state.close()
