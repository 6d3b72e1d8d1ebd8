"""However a partition is cut into runs and task commits, the results are those of a plain loop over its records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import logflume.streams as lf
from logflume.log.records import Chunk
from logflume.streams import col
from logflume.streams.seams import Program
from logflume.streams.state.store import Store

SIZE, GRACE = 10, 5
Record = tuple[bytes | None, bytes | None, int]


class Click(msgspec.Struct):
    ms: int | None
    price: float | None


class Collector:
    """Keeps outputs in order and counts problems."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes | None, int]] = []
        self.reasons: Counter[str] = Counter()

    def send(self, node: str, keys: Sequence[Any], values: Sequence[Any], timestamps_ms: Sequence[int], **more: Any) -> None:
        assert more["causes"] is None or list(more["causes"]) == sorted(more["causes"])
        self.records += list(zip(keys, values, timestamps_ms, strict=True))

    def send_columns(self, node: str, records: Chunk, **more: Any) -> None:
        self.send(node, records.keys(), records.values(), records.timestamps_ms.tolist(), **more)

    def report(self, reason: str, node: str, topic: str, partition: int, offset: int, cause: object) -> None:
        self.reasons[reason] += 1


def windowed(emit: str) -> Program:
    app = lf.App("runs")
    grouped = app.stream("in", Click).group_by_key().window(lf.tumbling(SIZE, grace=GRACE))
    grouped.aggregate(n=lf.count(), ms=lf.sum(col.ms), top=lf.max(col.price), mean=lf.mean(col.ms), name="s", emit=emit).to("out")
    return app.plan().subtopologies[0].program


def counted(emit: str) -> Program:
    app = lf.App("runs")
    app.stream("in", Click).filter(col.ms > 0).group_by_key().aggregate(n=lf.count(col.price), name="s", emit=emit).to("out")
    return app.plan().subtopologies[0].program


PROGRAMS = {
    (name, emit): make(emit) for name, make in (("windowed", windowed), ("counted", counted)) for emit in ("update", "commit")
}

VALUES = st.one_of(
    st.builds(
        lambda ms, price: json.dumps({"ms": ms, "price": price}).encode(),
        st.one_of(st.none(), st.integers(-5, 5)),
        st.one_of(st.none(), st.sampled_from([0.5, 1.25, -2.0])),
    ),
    st.none(),
    st.just(b"broken"),
)
RECORDS = st.lists(st.tuples(st.one_of(st.none(), st.sampled_from([b"a", b"b"])), VALUES, st.integers(-1, 60)), max_size=30)
CUTS = st.lists(st.tuples(st.integers(1, 7), st.booleans()), max_size=30)


def run(program: Program, records: list[Record], cuts: list[tuple[int, bool]]) -> tuple[Collector, dict[bytes, Any]]:
    """Take the records in runs of the given lengths, with a task commit after a run where its flag says so."""
    collector, store = Collector(), Store(program.stores[0])
    task = program.bind({"s": store}, collector, collector)
    keys, values, times = (list(part) for part in zip(*records, strict=True)) if records else ([], [], [])
    chunk = Chunk.from_columns("in", keys, values, np.array(times, dtype=np.int64), partition=0)
    start = 0
    for length, is_commit in [*cuts, (len(records), True)]:
        stop = min(len(records), start + length)
        if start < stop:
            task.process("in", chunk, start, stop)
        if is_commit:
            task.flush()
            store.committed()
        start = stop
    task.flush()
    store.committed()
    return collector, {key: (e.state, e.timestamp_ms) for key, e in store.resident.items()}


def latest(collector: Collector) -> dict[bytes | None, Any]:
    return {key: (value, time) for key, value, time in collector.records}


def model(records: list[Record]) -> tuple[dict[tuple[bytes, int], list[tuple[Any, Any, int]]], Counter[str]]:
    """Return the values of each window that count, and what is dropped, as simply as it can be said."""
    now, windows, dropped = -1, {}, Counter[str]()
    for key, data, time in records:
        if time < 0:
            dropped["negative_time"] += 1
        elif data == b"broken":
            dropped["decode"] += 1
        elif key is None:
            dropped["null_key"] += 1
        else:
            now = max(now, time)
            start = time // SIZE * SIZE
            if start + SIZE > now - GRACE:
                value = {"ms": None, "price": None} if data is None else json.loads(data)
                windows.setdefault((key, start), []).append((value["ms"], value["price"], time))
            else:
                dropped["late"] += 1
    return windows, dropped


@settings(max_examples=150, deadline=None)
@given(RECORDS, CUTS)
def test_windows_hold_what_the_plain_loop_gives(records: list[Record], cuts: list[tuple[int, bool]]) -> None:
    windows, dropped = model(records)
    expected = {}
    for (key, start), rows in windows.items():
        numbers = [ms for ms, _, _ in rows if ms is not None]
        prices = [price for _, price, _ in rows if price is not None]
        row = {
            "n": len(rows),
            "ms": sum(numbers),
            "top": max(prices, default=None),
            "mean": sum(numbers) / len(numbers) if numbers else None,
        }
        expected[key + start.to_bytes(8, "big")] = (row, max(time for _, _, time in rows))
    for emit in ("update", "commit"):
        collector, _ = run(PROGRAMS["windowed", emit], records, cuts)
        found = {key: (json.loads(value or b"null"), time) for key, (value, time) in latest(collector).items()}
        assert found == expected
        assert collector.reasons == dropped


@settings(max_examples=100, deadline=None)
@given(RECORDS, CUTS)
def test_runs_and_commits_do_not_change_results(records: list[Record], cuts: list[tuple[int, bool]]) -> None:
    for name in ("windowed", "counted"):
        whole, store = run(PROGRAMS[name, "update"], records, [])
        pieces, same_store = run(PROGRAMS[name, "update"], records, cuts)
        assert pieces.records == whole.records
        assert same_store == store
        at_commit, commit_store = run(PROGRAMS[name, "commit"], records, cuts)
        assert latest(at_commit) == latest(whole)
        assert commit_store == store
        assert at_commit.reasons == pieces.reasons == whole.reasons


@settings(max_examples=100, deadline=None)
@given(RECORDS, CUTS, st.integers(0, 30))
def test_final_results_leave_exactly_once_across_a_restart(
    records: list[Record], cuts: list[tuple[int, bool]], stop: int
) -> None:
    program = windowed("final")
    whole, _ = run(program, records, [])
    first, store = Collector(), Store(program.stores[0])
    for part in (records[:stop], records[stop:]):
        task = program.bind({"s": store}, first, first)
        keys, values, times = (list(column) for column in zip(*part, strict=True)) if part else ([], [], [])
        chunk = Chunk.from_columns("in", keys, values, np.array(times, dtype=np.int64), partition=0)
        task.process("in", chunk, 0, len(part))
        task.flush()
        store.committed()
    assert sorted(first.records, key=str) == sorted(whole.records, key=str)
    assert len({key for key, _, _ in first.records}) == len(first.records)
