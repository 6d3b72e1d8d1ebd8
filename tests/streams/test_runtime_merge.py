"""The order in which records are taken and repartitioned: against plain references, over random data and random fetches."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log.records import Chunk, TopicPartition
from logflume.streams.runtime.handlers import Handlers, OnProblem
from logflume.streams.runtime.merge import Input, Merger, Round, Run
from logflume.streams.runtime.outputs import merge_by_time
from logflume.streams.runtime.problems import TaskProblems
from logflume.streams.runtime.task import Task
from logflume.streams.seams import OutputTopic, SubTopology
from logflume.streams.state import Checkpoint
from tests.streams.handmade import Program, RekeyByValue

TIMES = st.lists(st.integers(0, 30), max_size=25)


def chunk_of(topic: str, partition: int, times: list[int], start: int, stop: int, *, next_offset: int | None = None) -> Chunk:
    """Offsets are twice the index, so that positions are not confused with indices."""
    values = [b"%s-%d-%d" % (topic.encode(), partition, i) for i in range(start, stop)]
    chunk = Chunk.from_columns(topic, values, values, times[start:stop], partition=partition)
    chunk.offsets = np.arange(start, stop, dtype=np.int64) * 2
    chunk.next_offset = stop * 2 if next_offset is None else next_offset
    return chunk


def reference_merge(inputs: list[tuple[TopicPartition, list[int]]]) -> list[tuple[TopicPartition, int]]:
    """Take the head with the smallest (timestamp, topic, partition), again and again."""
    queues = {tp: deque(enumerate(times)) for tp, times in inputs}
    taken = []
    while any(queues.values()):
        tp = min((tp for tp in queues if queues[tp]), key=lambda tp: (queues[tp][0][1], tp))
        taken.append((tp, queues[tp].popleft()[0]))
    return taken


def in_order(run: Run | Round) -> list[tuple[TopicPartition, int]]:
    """Return which records of which input are taken, in order."""
    found = [
        (part.input.partition, int(offset) // 2) for part in run.parts() for offset in part.chunk.offsets[part.start : part.stop]
    ]
    places = np.concatenate(run.places) if isinstance(run, Round) else np.arange(len(run))
    assert sorted(places.tolist()) == list(range(len(run)))
    return [found[at] for at in np.argsort(places)]


def test_records_that_come_a_few_at_a_time_are_taken_together() -> None:
    source = Input(("a",), TopicPartition("a", 0), position=0)
    merger = Merger([source])
    times = [5, 3, 9, 9, 1, 7, 8]
    for start, stop in ((0, 2), (2, 3), (3, 7)):
        source.add(chunk_of("a", 0, times, start, stop))
    merger.plan(lambda tp: True)
    (run,) = merger.runs
    assert [value.decode() for value in run.chunk.values() if value] == [f"a-0-{i}" for i in range(7)]
    assert run.chunk.keys() == run.chunk.values()
    assert run.chunk.offsets.tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert run.chunk.next_offset == 14
    assert run.times_ms.tolist() == [5, 5, 9, 9, 9, 9, 9]
    source.processed(run)
    assert (source.position, source.buffered_records, source.buffered_bytes) == (14, 0, 0)


def test_large_chunks_and_one_that_is_begun_are_left_as_they_are() -> None:
    source, other = (Input((topic,), TopicPartition(topic, 0), position=0) for topic in ("a", "b"))
    merger = Merger([source, other])
    large = [1, 20, *[30] * 2000]
    source.add(chunk_of("a", 0, large, 0, len(large)))
    other.add(chunk_of("b", 0, [10], 0, 1))
    merger.plan(lambda tp: False)
    assert [(run.chunk.topic, len(run)) for run in merger.runs] == [("a", 1), ("b", 1)]
    begun = source.chunks[0]
    for start, stop in ((2002, 2003), (2003, 2004)):
        source.add(chunk_of("a", 0, [*large, 40, 50], start, stop))
    merger.plan(lambda tp: True)
    assert [(run.chunk.topic, len(run)) for run in merger.runs] == [("a", 1), ("b", 1), ("a", 2001), ("a", 2)]
    assert merger.runs[2].chunk is begun


@pytest.mark.parametrize("takes_together", [False, True])
@settings(deadline=None)
@given(times=st.tuples(TIMES, TIMES, TIMES), random=st.randoms(use_true_random=False))
def test_inputs_are_merged_by_time_however_they_are_fetched(
    takes_together: bool, times: tuple[list[int], ...], random: Any
) -> None:
    names = [TopicPartition("b", 0), TopicPartition("a", 0), TopicPartition("a", 1)]
    inputs = {tp: Input((tp.topic,), tp, position=0) for tp in names}
    merger = Merger(list(inputs.values()), takes_together=takes_together)
    fed = dict.fromkeys(names, 0)
    taken: list[tuple[TopicPartition, int]] = []
    largest: list[int] = []
    by_name = dict(zip(names, times, strict=True))
    while True:
        merger.plan(lambda tp: fed[tp] == len(by_name[tp]))
        while merger.runs:
            run = merger.runs.popleft()
            if len(run) > 1 and random.random() < 0.3:
                run, later = run.split(random.randint(1, len(run) - 1))
                merger.runs.appendleft(later)
            taken += in_order(run)
            largest += run.times_ms.tolist()
        unfed = [tp for tp in names if fed[tp] < len(by_name[tp])]
        if not unfed:
            break
        tp = random.choice(unfed)
        stop = random.randint(fed[tp] + 1, len(by_name[tp]))
        inputs[tp].add(chunk_of(*tp, by_name[tp], fed[tp], stop))
        fed[tp] = stop
    assert taken == reference_merge(list(by_name.items()))
    assert largest == np.maximum.accumulate([by_name[tp][i] for tp, i in taken] or [0])[: len(taken)].tolist()
    assert not merger.is_blocked


def test_an_empty_input_holds_back_only_while_it_may_have_more() -> None:
    left, right = Input(("l",), TopicPartition("l", 0), position=0), Input(("r",), TopicPartition("r", 0), position=0)
    merger = Merger([left, right])
    left.add(chunk_of("l", 0, [5, 6], 0, 2))
    merger.plan(lambda tp: False)
    assert not merger.runs
    assert merger.is_blocked
    merger.plan(lambda tp: tp.topic == "r")
    assert [len(run) for run in merger.runs] == [2]
    assert merger.is_blocked
    merger.plan(lambda tp: True)
    assert not merger.is_blocked


def make_task(partition: int) -> Task:
    sub = SubTopology("rekey", Program(RekeyByValue, {"lines": "lines"}), {"words": OutputTopic("r", is_repartition=True)})
    problems = TaskProblems("t", handlers=Handlers.all(OnProblem.SKIP), keeps_letters=False)
    source = {"lines": TopicPartition("lines", partition)}
    return Task(sub, partition, inputs=source, state=None, problems=problems, checkpoint=Checkpoint())


@settings(deadline=None)
@given(st.lists(TIMES, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_history_is_repartitioned_in_one_order_however_it_is_fetched(times: list[list[int]], random: Any) -> None:
    tasks = [make_task(partition) for partition in range(len(times))]
    fed = [0] * len(times)
    result: list[bytes | None] = []
    while True:
        for task in tasks:
            task.plan(lambda tp: fed[tp.partition] == len(times[tp.partition]))
        limit = min(task.frontier() for task in tasks)
        for task in tasks:
            task.process(limit, 1 << 40)
        parts = [columns for task in tasks for columns in task.take_outputs()]
        if parts:
            result += merge_by_time(parts).values()
        unfed = [p for p in range(len(times)) if fed[p] < len(times[p])]
        if not unfed:
            break
        partition = random.choice(unfed)
        stop = random.randint(fed[partition] + 1, len(times[partition]))
        tasks[partition].add(chunk_of("lines", partition, times[partition], fed[partition], stop))
        fed[partition] = stop
    expected = []
    for partition, column in enumerate(times):
        for i, time_ms in enumerate(np.maximum.accumulate(column).tolist() if column else []):
            expected.append((time_ms, partition, i))
    assert result == [b"lines-%d-%d" % (partition, i) for _, partition, i in sorted(expected)]
    assert not any(task.has_work for task in tasks)


def test_positions_follow_what_is_processed_and_markers_after_it() -> None:
    task = make_task(0)
    everything = ((1 << 62), 1 << 30)
    task.add(chunk_of("lines", 0, [1, 2, 3], 0, 3, next_offset=9))
    task.plan(lambda tp: False)
    assert task.process((2, 0), 1 << 40) == 2
    source = task.inputs[TopicPartition("lines", 0)]
    assert (source.position, source.time_ms) == (4, 2)
    marker = chunk_of("lines", 0, [], 0, 0, next_offset=12)
    task.add(marker)
    assert source.position == 4
    assert task.process(everything, 1 << 40) == 1
    assert source.position == 12
    task.has_changes = False
    task.add(chunk_of("lines", 0, [], 0, 0, next_offset=13))
    assert source.position == 13
    assert task.has_changes
    assert task.checkpoint().inputs == {TopicPartition("lines", 0): 13}


def test_a_round_is_bounded_and_goes_on_where_it_stopped() -> None:
    task = make_task(0)
    task.add(chunk_of("lines", 0, list(range(100)), 0, 100))
    task.plan(lambda tp: True)
    assert task.process(((1 << 62), 1 << 30), 30) == 30
    assert task.has_work
    assert task.process(((1 << 62), 1 << 30), 1000) == 70
    assert [len(c) for c in task.take_outputs()] == [100]
