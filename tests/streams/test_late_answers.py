"""Tables whose rows go through topics in between come to the same last rows, whenever those topics are read."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import logflume.streams as lf
from logflume.log.records import Chunk
from logflume.log.schemas import BIGINT, STRING, Column, FormatSpec
from logflume.sql.catalog import Catalog, SourceInfo
from logflume.sql.planner import plan_query
from logflume.streams import col
from logflume.streams.planner import plan
from logflume.streams.seams import Plan, SubTopology, Taken
from logflume.streams.state.store import Store

OUT, PARTITIONS = "out", 2
KEYS = ("a", "b", "x")
LATER = tuple(f"later{i}" for i in range(6))
"""Keys of rows that come at the end, in each partition, so that nothing is held back any more."""


class Row(msgspec.Struct):
    """Of every table: the key of a row of another one, and a number."""

    ref: str | None
    n: int


class Change(NamedTuple):
    """A row of an input, deleted where `n` is None; `commits`: whether the task commits behind it."""

    table: int
    key: str
    ref: str | None
    n: int | None
    commits: bool = True


class Take(NamedTuple):
    """The next records of one of the partitions in between that have some are read."""

    which: int = 0
    count: int = 9
    commits: bool = True


RESTART = "restart"
Step = Change | Take | str
STEPS = st.lists(
    st.one_of(
        st.builds(
            Change, st.integers(0, 2), st.sampled_from(KEYS), st.sampled_from([None, *KEYS]), st.none() | st.integers(0, 3),
            st.booleans(),
        ),
        st.builds(Take, st.integers(0, 5), st.integers(1, 3), st.booleans()),
        st.just(RESTART),
    ),
    max_size=30,
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------- topologies

Node = tuple[Any, ...]
"""What it is, the tables that it is made of by their places in the shape, whether it keeps its rows or puts out at once."""
A, B, C = ("table", "A"), ("table", "B"), ("table", "C")
LAST = ("last", "A")
SHAPES: dict[str, list[Node]] = {
    "join": [A, B, ("fk", 0, 1, 0)],
    "join kept": [A, B, ("fk", 0, 1, 1)],
    "left join": [A, B, ("left fk", 0, 1, 0)],
    "left join kept": [A, B, ("left fk", 0, 1, 1)],
    "join with itself": [A, ("fk", 0, 0, 0)],
    "groups": [A, ("group", 0, 0)],
    "groups at once": [A, ("group", 0, 1)],
    "groups of groups": [A, ("group", 0, 0), ("group", 1, 0)],
    "groups of a join": [A, B, ("fk", 0, 1, 0), ("group", 2, 0)],
    "groups of a left join": [A, B, ("left fk", 0, 1, 0), ("group", 2, 1)],
    "join of groups": [A, B, ("group", 0, 0), ("fk", 2, 1, 0)],
    "join with groups": [A, B, ("group", 1, 0), ("fk", 0, 2, 0)],
    "join of a join": [A, B, C, ("fk", 0, 1, 0), ("fk", 3, 2, 0)],
    "join with a join": [A, B, C, ("fk", 1, 2, 0), ("fk", 0, 3, 0)],
    "left join of a join": [A, B, C, ("fk", 0, 1, 0), ("left fk", 3, 2, 0)],
    "join of a left join": [A, B, C, ("left fk", 0, 1, 0), ("fk", 3, 2, 0)],
    "join by key of a join": [A, B, C, ("fk", 0, 1, 0), ("inner", 3, 2, 0)],
    "left join by key with a join": [A, B, C, ("fk", 0, 1, 0), ("left", 2, 3, 0)],
    "outer join by key with its own side": [A, B, ("fk", 0, 1, 0), ("outer", 2, 0, 0), ("group", 3, 0)],
    "join of a join by key": [A, B, C, ("outer", 0, 1, 0), ("fk", 3, 2, 0)],
    "join of views": [A, B, ("filter", 0, 0), ("select", 1, 0), ("fk", 2, 3, 0), ("filter", 4, 0), ("group", 5, 0)],
    "join of kept views": [A, B, ("filter", 0, 1), ("select", 1, 1), ("fk", 2, 3, 1), ("filter", 4, 1), ("group", 5, 0)],
    "join held back": [A, B, ("fk", 0, 1, 0), ("suppress", 2), ("group", 3, 0)],
    "last rows by another key": [LAST, B, ("fk", 0, 1, 0)],
    "groups of last rows": [LAST, ("group", 0, 0)],
    "join by key of groups": [A, B, ("group", 0, 0), ("group", 1, 0), ("inner", 2, 3, 0)],
    "filtered join by key of groups": [A, B, ("group", 0, 0), ("group", 1, 0), ("left", 2, 3, 0), ("filter", 4, 0)],
    "groups of a join by key of groups": [A, B, ("group", 0, 0), ("group", 1, 0), ("outer", 2, 3, 0), ("group", 4, 0)],
    "join of a join by key of groups": [A, B, ("group", 0, 0), ("group", 1, 0), ("inner", 2, 3, 0), ("fk", 4, 1, 0)],
    "join by key of groups held back": [A, B, ("group", 0, 0), ("group", 1, 0), ("inner", 2, 3, 0), ("suppress", 4)],
}  # fmt: skip
QUERIES: dict[str, str] = {
    "join": "SELECT A.K, B.REF AS REF, A.N * 5 + B.N AS N FROM A JOIN B ON A.REF = B.K",
    "left join": "SELECT A.K, B.REF AS REF, A.N * 5 + COALESCE(B.N, 50) AS N FROM A LEFT JOIN B ON A.REF = B.K",
    "groups": "SELECT REF AS K, CASE WHEN SUM(N) % 3 = 0 THEN 'a' WHEN SUM(N) % 3 = 1 THEN 'b' ELSE 'x' END AS REF, SUM(N) AS N "
    "FROM A GROUP BY REF HAVING COUNT(*) > 0",
}
"""Statements whose tables are those of the shapes of these names."""


@cache
def planned(shape: str) -> Plan:
    """Return the application of a shape."""
    app, made = lf.App("slow"), list[Any]()
    for place, (what, *of) in enumerate(SHAPES[shape]):
        name = f"t{place}"
        if what == "table":
            made.append(app.table(of[0], Row, key=str))
            continue
        if what == "last":
            rows = app.stream(of[0], Row, key=str).select_key(col.ref, name=name).to_table(store=f"{name}-rows")
            made.append(rows.select(ref=col.ref, n=col.n))
            continue
        table, is_kept = made[of[0]], bool(of[-1])
        store = f"{name}-rows" if is_kept else None
        match what:
            case "fk" | "left fk":
                join = table.join if what == "fk" else table.left_join
                joined = join(made[of[1]], on=col.ref, prefix="r_", store=store, name=name)
                made.append(joined.select(ref=col.r_ref, n=col.n * 5 + col.r_n.fill_null(50)))
            case "inner" | "left" | "outer":
                join = {"inner": table.join, "left": table.left_join, "outer": table.outer_join}[what]
                joined = join(made[of[1]], prefix="r_", store=store, name=name)
                made.append(joined.select(ref=col.ref.fill_null(col.r_ref), n=col.n.fill_null(40) * 3 + col.r_n.fill_null(70)))
            case "filter":
                made.append(table.filter(col.n % 4 < 2, store=store))
            case "select":
                made.append(table.select(ref=col.ref, n=col.n + 2, store=store))
            case "group":
                groups = table.group_by(col.ref.cast(str), name=name)
                emit = "update" if is_kept else "commit"
                summed = groups.aggregate(rows=lf.count(), n=lf.sum(col.n), name=f"{name}-sums", emit=emit).filter(col.rows > 0)
                ref = lf.when(col.n % 3 == 0, "a").when(col.n % 3 == 1, "b").otherwise("x")
                made.append(summed.select(ref=ref, n=col.n))
            case "suppress":
                made.append(table.suppress(lf.until_time_limit(lf.milliseconds(3)), name=name))
    made[-1].to_stream().to(OUT)
    return app.plan()


@cache
def planned_query(shape: str) -> Plan:
    """Return the application of a statement."""
    row = (Column("REF", STRING), Column("N", BIGINT))
    formats = FormatSpec("KAFKA"), FormatSpec("JSON")
    sources = {name: SourceInfo(name, True, name, (Column("K", STRING),), row, *formats) for name in "AB"}
    return plan(plan_query(f"CREATE TABLE O WITH (KAFKA_TOPIC = '{OUT}') AS {QUERIES[shape]}", Catalog(sources=sources)))


Rows = dict[str, tuple[str | None, int]]


def last_rows(shape: Sequence[Node], inputs: Mapping[str, Rows]) -> Rows:
    """Return what a shape comes to, of the last rows of its inputs."""
    made = list[Rows]()
    for what, *of in shape:
        if what in ("table", "last"):
            made.append(inputs[of[0]])
            continue
        rows = made[of[0]]
        match what:
            case "fk" | "left fk":
                others = made[of[1]]
                pairs = {key: (n, others.get(ref)) for key, (ref, n) in rows.items() if what == "left fk" or ref in others}  # type: ignore[arg-type]
                rows = {
                    key: (None, n * 5 + 50) if other is None else (other[0], n * 5 + other[1])
                    for key, (n, other) in pairs.items()
                }
            case "inner" | "left" | "outer":
                others = made[of[1]]
                keys = {"inner": rows.keys() & others.keys(), "left": rows.keys(), "outer": rows.keys() | others.keys()}[what]
                both = {key: (rows.get(key, (None, 40)), others.get(key, (None, 70))) for key in keys}
                rows = {
                    key: (other[0] if row[0] is None else row[0], row[1] * 3 + other[1]) for key, (row, other) in both.items()
                }
            case "filter":
                rows = {key: (ref, n) for key, (ref, n) in rows.items() if n % 4 < 2}
            case "select":
                rows = {key: (ref, n + 2) for key, (ref, n) in rows.items()}
            case "group":
                sums = {ref: sum(n for other, n in rows.values() if other == ref) for ref, _ in rows.values() if ref is not None}
                rows = {ref: ("abx"[n % 3], n) for ref, n in sums.items()}
        made.append(rows)
    return made[-1]


# --------------------------------------------------------------------------------------------------------------- the application


class Slow:
    """An application of two partitions whose topics in between are read when it is said so."""

    def __init__(self, app: Plan) -> None:
        self.topics = {node: output.topic for part in app.subtopologies for node, output in part.outputs.items()}
        self.on_the_way: dict[tuple[str, int], deque[tuple[Any, Any, int]]] = {}
        self.results: dict[str, Any] = {}
        self.tasks = [Task(self, part, partition) for part in app.subtopologies for partition in range(PARTITIONS)]

    def send(self, node: str, keys: Sequence[Any], values: Sequence[Any], timestamps_ms: Sequence[int], **more: Any) -> None:
        topic = self.topics[node]
        for key, value, time in zip(keys, values, timestamps_ms, strict=True):
            if topic == OUT:
                self.results[key.decode()] = value
            else:
                self.on_the_way.setdefault((topic, partition_of(key)), deque()).append((key, value, time))

    def send_columns(self, node: str, records: Chunk, **more: Any) -> None:
        self.send(node, records.keys(), records.values(), records.timestamps_ms.tolist())

    def report(self, reason: str, *told: Any) -> None:
        assert reason == "null_key", told

    def give(self, topic: str, partition: int, records: list[tuple[Any, Any, int]], *, commits: bool) -> None:
        for task in self.tasks:
            if task.partition == partition:
                task.give(topic, records, commits=commits)

    def take(self, which: int, count: int, *, commits: bool) -> bool:
        """Have records in between read; return whether there were some."""
        waiting = sorted(place for place, records in self.on_the_way.items() if records)
        if waiting:
            topic, partition = waiting[which % len(waiting)]
            records = self.on_the_way[topic, partition]
            self.give(topic, partition, [records.popleft() for _ in range(min(count, len(records)))], commits=commits)
        return bool(waiting)

    def drain(self) -> None:
        """Have all records in between read."""
        for _ in range(1000):
            for task in self.tasks:
                task.commit()
            if not self.take(0, 1, commits=True):
                return
        raise AssertionError("records come back for ever")


def partition_of(key: bytes | None) -> int:
    return 0 if key is None else zlib.crc32(key) % PARTITIONS


class Task:
    """A partition of a sub-topology."""

    def __init__(self, slow: Slow, part: SubTopology, partition: int) -> None:
        self.slow, self.part, self.partition = slow, part, partition
        self.stores = {spec.name: Store(spec) for spec in part.program.stores}
        self.function = part.program.bind(self.stores, slow, slow)

    def give(self, topic: str, records: list[tuple[Any, Any, int]], *, commits: bool) -> None:
        nodes = [node for node, read in self.part.program.sources.items() if read == topic]
        if not nodes:
            return
        keys, values, times = map(list, zip(*records, strict=True))
        chunk, places = Chunk.from_columns(topic, keys, values, times), np.arange(len(records))
        self.function.process_together([Taken(node, chunk, 0, len(records), places) for node in nodes])
        if commits:
            self.commit()

    def commit(self) -> None:
        self.function.flush()
        for store in self.stores.values():
            store.encode_dirty()
            store.committed()

    def restart(self) -> None:
        """Begin anew with what was written of the stores."""
        self.commit()
        before, self.stores = self.stores, {}
        for name, store in before.items():
            self.stores[name] = again = Store(store.spec, stream_time_ms=store.stream_time_ms, newest_ms=store.newest_ms)
            for key, entry in store.range(b"", None):
                data = store.encoded([entry])[0]
                assert data is not None, "a store shows living entries"
                again.resident[key] = again.codec.decode(data)
        self.function = self.part.program.bind(self.stores, self.slow, self.slow)


def check(app: Plan, shape: Sequence[Node], steps: Sequence[Step]) -> None:
    """Run the steps and all that follows from them; the last results are those of the last rows."""
    slow, time = Slow(app), 0
    kinds = {of[0]: what for what, *of in shape if what in ("table", "last")}
    names, inputs = list(kinds), {name: Rows() for name in kinds}

    def change(name: str, key: str, row: tuple[str | None, int] | None, *, commits: bool) -> None:
        # a record of a stream has one partition, so that of those that get one key there is a last one
        partition = 0 if kinds[name] == "last" else partition_of(key.encode())
        value = None if row is None else msgspec.json.encode(Row(*row))
        slow.give(name, partition, [(key.encode(), value, time)], commits=commits)

    for step in steps:
        match step:
            case Change(table, key, ref, n, commits):
                time += 1
                name, row = names[table % len(names)], None if n is None else (ref, n)
                place = ref if kinds[name] == "last" else key
                if row is not None and place is not None:
                    inputs[name][place] = row
                elif kinds[name] == "table":
                    inputs[name].pop(key, None)
                change(name, key, row, commits=commits)
            case Take(which, count, commits):
                slow.take(which, count, commits=commits)
            case _:
                for task in slow.tasks:
                    task.restart()
    slow.drain()
    for _ in [what for what, *_ in shape if what == "suppress"]:
        time += 100
        for name in names:
            for key in LATER:
                change(name, key, (key, 2), commits=True)
        slow.drain()
    found = {key: msgspec.json.decode(value) for key, value in slow.results.items() if value is not None and key not in LATER}
    results = {key: {name.lower(): cell for name, cell in value.items()} for key, value in found.items()}
    assert {key: (value["ref"], value["n"]) for key, value in results.items()} == last_rows(shape, inputs)


ASKED = [Change(1, "x", "b", 1), Change(0, "a", "x", 1), Take(), Take()]
PAIR = [Change(0, "a", "x", 0), Change(1, "a", "x", 0), *[Take()] * 4]
LATE = Take(commits=False)


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=6)
@example(steps=[*ASKED, Change(0, "a", None, 1), Change(0, "a", None, 2)])
@example(steps=[*ASKED, Change(0, "a", None, 1), Change(0, "a", None, None)])
@example(steps=[*ASKED, Change(0, "a", None, 1), Change(0, "a", "b", 1)])
@example(steps=[*ASKED, Change(0, "a", None, None), Change(0, "a", "b", 1)])
@example(steps=[*ASKED, Change(1, "x", None, None), Change(0, "a", "x", 2)])
@example(steps=[*ASKED, RESTART, Change(0, "a", None, 1), Change(0, "a", "b", 1), RESTART, Take()])
@example(steps=[*PAIR, Change(0, "a", None, None), Change(1, "a", None, None), *[LATE] * 4])
@example(steps=[*PAIR, Change(0, "a", "x", 1), Change(1, "a", "x", 3), *[LATE] * 4])
@given(steps=STEPS)
def test_the_last_results_are_those_of_the_last_rows(shape: str, steps: list[Step]) -> None:
    check(planned(shape), SHAPES[shape], steps)


@pytest.mark.parametrize("shape", QUERIES)
@settings(max_examples=15)
@example(steps=[*ASKED, Change(0, "a", None, 1), Change(0, "a", "b", 1)])
@example(steps=[*ASKED, Change(1, "x", None, None), Change(0, "a", "x", 2)])
@given(steps=STEPS)
def test_so_it_is_with_statements(shape: str, steps: list[Step]) -> None:
    check(planned_query(shape), SHAPES[shape], steps)


def test_a_join_of_groups_is_kept_only_where_rows_may_go() -> None:
    app = lf.App("slow")
    left, right = (app.table(name, Row, key=str).group_by(col.ref.cast(str), name=name.lower()).sum(col.n) for name in "AB")
    left.join(right, prefix="r_", name="joined").to(OUT)
    left.filter(col.sum > 0).join(right.filter(col.sum > 0), prefix="r_", name="may-go").to("other")
    stores = {spec.name for part in app.plan().subtopologies for spec in part.program.stores}
    assert stores & {"joined", "may-go"} == {"may-go"}
