"""Records of several inputs as one round: a task puts out and keeps what runs of one input give, whatever alternates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logflume.streams as lf
from logflume.log.records import Chunk, TopicPartition
from logflume.streams import col
from logflume.streams.columns import Batch
from logflume.streams.operators.filter import FilterWork
from logflume.streams.operators.source import SourceWork
from logflume.streams.runtime.handlers import Handlers, OnProblem
from logflume.streams.runtime.merge import Merger, Round
from logflume.streams.runtime.problems import TaskProblems
from logflume.streams.runtime.task import Task
from logflume.streams.state import Checkpoint
from logflume.streams.state.store import Store


class Order(msgspec.Struct):
    id: int
    status: str


Row = tuple[bytes | None, bytes | None, int]
ROWS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", None]),
        st.sampled_from([*(b'{"id":%d,"status":"new"}' % n for n in range(4)), b"bad", None]),
        st.integers(0, 12),
    ),
    max_size=25,
)
EVERYTHING = (1 << 62, 1 << 30)


def both(app: lf.App) -> tuple[Any, Any]:
    return app.stream("left", Order, key=str), app.stream("right", Order, key=str)


def inner(app: lf.App) -> Any:
    left, right = both(app)
    return left.join(right, within=lf.milliseconds(3), prefix="r_")


def outer(app: lf.App) -> Any:
    left, right = both(app)
    return left.outer_join(right, within=lf.milliseconds(3), grace=lf.milliseconds(2), prefix="r_")


def of_one_branch(app: lf.App) -> Any:
    left, right = both(app)
    return left.merge(right).join(left.filter(col.id > 0), within=lf.milliseconds(3), prefix="r_")


def merged(app: lf.App) -> Any:
    left, right = both(app)
    return left.merge(right.filter(col.id > 1)).flat_map_values(lambda order: [order, order])


def regrouped(app: lf.App) -> Any:
    left, right = both(app)
    pairs = left.left_join(right, within=lf.milliseconds(3), grace=lf.milliseconds(0), prefix="r_")
    return pairs.group_by(col.id).count().to_stream()


def tables(app: lf.App) -> tuple[Any, Any]:
    return app.table("left", Order, key=str), app.table("right", Order, key=str)


def looked_up(app: lf.App) -> Any:
    return app.stream("left", Order, key=str).left_join(app.table("right", Order, key=str), prefix="r_")


def met(app: lf.App) -> Any:
    """What is looked up also leaves, and a view of it is met by a part of the stream; behind that order counts."""
    left, right = app.stream("left", Order, key=str), app.table("right", Order, key=str)
    right.to("rows")
    joined = left.filter(col.id > 0).join(right.filter(col.id > 1), prefix="r_")
    return (
        joined.select(id=col.r_id, status=col.status)
        .merge(left.filter(col.id == 0))
        .group_by_key()
        .aggregate("", lambda seen, order: f"{seen}{order.id}")
        .to_stream()
    )


def followed(app: lf.App) -> Any:
    """Behind what is looked up come others that go by key, of functions too, and at the end one that goes by time."""
    found = looked_up(app).filter(lambda order: order.r_id != 1).flat_map_values(lambda order: [order.id, order.r_id or 0])
    found.group_by_key().aggregate(0, lambda total, n: 10 * total + n, emit="update", name="each").to("each")
    found.group_by_key().window(lf.tumbling(5)).count(emit="update").to("windows")
    return found.map_values(lambda n: n + 1)


def grouped(app: lf.App) -> Any:
    left, right = tables(app)
    return left.outer_join(right, prefix="r_").group_by(col.r_id).aggregate(n=lf.count()).to_stream()


def of_functions(app: lf.App) -> Any:
    left, right = app.stream("left", Order, key=str), app.table("right", Order, key=str)
    return left.map_values(lambda order: Order(4 // order.id, "mapped")).left_join(right, lambda a, b: (a.id, b and b.id))


def counted(app: lf.App) -> Any:
    """What is looked up is made of records, and its changes leave as the node says: here each."""
    left, right = both(app)
    counts = right.group_by_key().aggregate(n=lf.count(), most=lf.max(col.id), emit="update")
    return left.left_join(counts, prefix="r_")


def of_tables(app: lf.App) -> Any:
    left, right = tables(app)
    return left.outer_join(right, prefix="r_").to_stream()


def kept(app: lf.App) -> Any:
    left, right = tables(app)
    pairs = left.left_join(right.filter(col.id > 1), prefix="r_", name="pairs")
    return pairs.filter(col.id > 0).to_stream()


def task_of(build: Callable[[lf.App], Any], *, takes_together: bool) -> Task:
    app = lf.App("rounds")
    build(app).to("out")
    part = next(part for part in app.plan().subtopologies if "left" in part.program.sources.values())
    problems = TaskProblems("t", handlers=Handlers.all(OnProblem.SKIP), keeps_letters=True)
    state: Any = SimpleNamespace(stores={spec.name: Store(spec) for spec in part.program.stores})
    inputs = {node: TopicPartition(topic, 0) for node, topic in part.program.sources.items()}
    task = Task(part, 0, inputs=inputs, state=state, problems=problems, checkpoint=Checkpoint())
    assert part.program.takes_together
    if not takes_together:
        task.merger = Merger(list(task.inputs.values()))
    return task


def chunk_of(topic: str, rows: list[Row], start: int) -> Chunk:
    chunk = Chunk.from_columns(topic, [k for k, _, _ in rows], [v for _, v, _ in rows], [t for _, _, t in rows], partition=0)
    chunk.offsets = chunk.offsets + start
    chunk.next_offset = start + len(rows)
    return chunk


def results(task: Task, rows: dict[str, list[Row]], sizes: list[int], limit: int) -> Any:
    """Feed the inputs a few records at a time; return what came out, with times of causes, what was reported and what is kept."""
    outputs: dict[str, list[Any]] = {}
    fed = dict.fromkeys(rows, 0)
    turn, rounds = 0, 0
    while True:
        task.plan(lambda tp: fed[tp.topic] == len(rows[tp.topic]))
        rounds += sum(isinstance(run, Round) for run in task.merger.runs)
        while task.has_work:
            task.process(EVERYTHING, limit)
        for columns in task.take_outputs():
            chunk = columns.chunk()
            times = [time for block in columns.times_ms for time in block.tolist()] or [None] * len(chunk)
            outputs.setdefault(columns.topic, []).extend(
                zip(chunk.keys(), chunk.values(), chunk.timestamps_ms.tolist(), times, strict=True)
            )
        topics = [topic for topic in rows if fed[topic] < len(rows[topic])]
        if not topics:
            break
        topic, count = topics[turn % len(topics)], sizes[turn % len(sizes)]
        task.add(chunk_of(topic, rows[topic][fed[topic] : fed[topic] + count], fed[topic]))
        fed[topic], turn = min(len(rows[topic]), fed[topic] + count), turn + 1
    task.flush()
    assert task.state is not None
    kept = {name: (list(store.range(b"", None)), store.stream_time_ms) for name, store in task.state.stores.items()}
    letters = Counter(map(str, task.problems.take_letters()))
    return (outputs, kept, task.problems.counts, letters, task.checkpoint().inputs, task.checkpoint().input_times_ms), rounds


@pytest.mark.parametrize(
    "build",
    [inner, outer, of_one_branch, merged, regrouped, looked_up, met, followed, grouped, counted, of_functions, of_tables, kept],
)
@settings(deadline=None, max_examples=25)
@given(ROWS, ROWS, st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(1, 40))
def test_a_round_of_several_inputs_gives_what_runs_of_one_give(
    build: Callable[[lf.App], Any], left: list[Row], right: list[Row], sizes: list[int], limit: int
) -> None:
    rows = {"left": left, "right": right}
    expected, _ = results(task_of(build, takes_together=False), rows, sizes, 1 << 40)
    found, _ = results(task_of(build, takes_together=True), rows, sizes, limit)
    assert found == expected


def test_inputs_that_alternate_are_taken_in_few_rounds() -> None:
    value = b'{"id":1,"status":"new"}'
    rows: dict[str, list[Row]] = {
        topic: [(b"k", value, 2 * n + first) for n in range(500)] for topic, first in (("left", 0), ("right", 1))
    }
    task = task_of(inner, takes_together=True)
    found, rounds = results(task, rows, [500], 1 << 40)
    assert rounds == 1
    assert len(found[0]["out"]) == 499 + 500 + 499 + 498


def test_what_is_looked_up_while_it_changes_is_taken_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key is asked for after its row came, and again after that has changed: four steps, whatever the number of keys."""
    taken: list[int] = []
    put = SourceWork.put

    def counted(work: SourceWork, batch: Batch) -> None:
        taken.append(len(batch))
        put(work, batch)

    monkeypatch.setattr(SourceWork, "put", counted)
    keys = [b"k%d" % (n % 250) for n in range(500)]
    rows: dict[str, list[Row]] = {
        "left": [(key, b'{"id":0,"status":"asked"}', 2 * n + 1) for n, key in enumerate(keys)],
        "right": [(key, b'{"id":%d,"status":"new"}' % n, 2 * n) for n, key in enumerate(keys)],
    }
    found, rounds = results(task_of(looked_up, takes_together=True), rows, [500], 1 << 40)
    assert (rounds, sorted(taken)) == (1, [1, 249, 250, 250, 250]), "the last one, behind all of the other topic, is no round"
    assert [msgspec.json.decode(value)["r_id"] for _, value, _, _ in found[0]["out"]] == list(range(500))


def test_what_follows_takes_few_steps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys come as often as they will, so that rows of later phases have come before some of earlier ones."""
    taken: list[int] = []
    process = FilterWork.process

    def counted(work: FilterWork, batch: Batch, source: str) -> None:
        taken.append(len(batch))
        process(work, batch, source)

    monkeypatch.setattr(FilterWork, "process", counted)
    keys = [b"k%d" % (n * n % 89) for n in range(1000)]
    rows: dict[str, list[Row]] = {
        "left": [(key, b'{"id":0,"status":"asked"}', 2 * n + 1) for n, key in enumerate(keys)],
        "right": [(key, b'{"id":%d,"status":"new"}' % n, 2 * n) for n, key in enumerate(keys)],
    }
    task = task_of(lambda app: looked_up(app).filter(col.r_id >= 0), takes_together=True)
    found, _ = results(task, rows, [1000], 1 << 40)
    assert [msgspec.json.decode(value)["r_id"] for _, value, _, _ in found[0]["out"]] == list(range(1000))
    assert sum(taken) == 1000
    assert len(taken) <= max(Counter(keys).values()) + 1


@pytest.mark.parametrize("what", ["versions", "keys in several forms", "windows"])
def test_what_does_not_go_by_key_alone_takes_its_inputs_in_runs(what: str) -> None:
    app = lf.App("rounds")
    key: Any = Order if what == "keys in several forms" else str
    left = app.stream("left", Order, key=key)
    if what == "windows":
        counts = app.stream("right", Order, key=key).group_by_key().window(lf.tumbling(10)).count()
        left.group_by_key().window(lf.tumbling(10)).count(name="n").join(counts, prefix="r_").to("out")
    else:
        table = app.table("right", Order, key=key, history=lf.seconds(1) if what == "versions" else None)
        left.join(table, prefix="r_").to("out")
    assert not app.plan().subtopologies[0].program.takes_together
