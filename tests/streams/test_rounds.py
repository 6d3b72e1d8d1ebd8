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


@pytest.mark.parametrize("build", [inner, outer, of_one_branch, merged, regrouped])
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


def test_what_looks_rows_up_takes_its_inputs_in_runs() -> None:
    app = lf.App("rounds")
    app.stream("left", Order, key=str).join(app.table("right", Order, key=str), prefix="r_").to("out")
    assert not app.plan().subtopologies[0].program.takes_together
