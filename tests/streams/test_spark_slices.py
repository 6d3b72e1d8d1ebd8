"""Tasks cut by keys give what whole tasks give, record for record, and a live task goes on from it. Without Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logflume.log import Chunk, Headers, Log, TopicPartition, connect
from logflume.streams.columns import Batch
from logflume.streams.kernels import kernel_loader
from logflume.streams.operators.stream_join import StreamJoinWork
from logflume.streams.runtime.topics import prepare_topics
from logflume.streams.seams import Plan, SubTopology
from logflume.streams.spark import steps
from logflume.streams.spark.archives import read_history
from logflume.streams.spark.backfill import plan_backfill
from logflume.streams.spark.local import LocalRunner
from logflume.streams.spark.ranges import OffsetRange
from logflume.streams.spark.replay import OutputRows, Replay, ReplayInput, TaskEnd, by_own_times
from logflume.streams.spark.rows import RowKind
from logflume.streams.spark.stages import SLICES_FROM_RECORDS, SLICES_MAX, stages_of
from logflume.streams.spark.steps import StepPlan, region_of

from . import _family_apps as families
from ._slice_apps import JOINS, OTHERS, loader, make_plan
from ._spark_apps import without_firsts

PARTITIONS = 2
TABLES = ("table-left", "table-outer", "table-and-regrouped", "table-grouped", "reduced", *families.FOREIGN)
IN_ORDER = ("inner", "self", "updates", "looked-up", "global", "global-left")
"""Kinds whose results each have a record that causes them alone: they leave in one order, whatever the commits."""
Sent = tuple[str, int, bytes | None, bytes | None, int, Headers]


def make_records(seed: int, length: int, partitions: int = PARTITIONS) -> list[Sent]:
    """Return sales and refunds: late, out of order, at the same time, without key or value, broken, with headers and without."""
    rng = random.Random(seed)
    now_ms, jump_ms = 0, rng.choice([3, 10_000, 60_000])
    records: list[Sent] = []
    for _ in range(length):
        now_ms += rng.randrange(jump_ms)
        back_ms = rng.randrange(4 * jump_ms) if rng.random() < 0.4 else 0
        row = {"shop": "s", "item": rng.choice(["a", "b", "ü", None]), "price": rng.choice([None, -0.0, rng.uniform(-9, 9)])}
        topic = rng.choice(["sales", "sales", "refunds"])
        if topic == "sales":
            row["amount"] = rng.choice([None, 13, *(rng.randrange(99) for _ in range(6))])
        value = json.dumps(row).encode()
        if rng.random() < 0.1:
            value = rng.choice([b"{broken", None])
        key = None if rng.random() < 0.05 else rng.choice([b"v", b"w", b"x", b"y", b"z"])
        headers: Headers = (("by", b"%d" % len(records)),) if rng.random() < 0.5 else ()
        records.append((topic, max(now_ms - back_ms, 0), key, value, rng.randrange(partitions), headers))
    return records


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with connect(str(tmp_path_factory.mktemp("slices") / "log")) as opened:
        yield opened


class Computed:
    """What a step puts out: the records of each result topic's partition in order, the changelogs, and the ends."""

    def __init__(self, step: StepPlan, plan: Plan, slices: int) -> None:
        result = LocalRunner(slices=slices).run(step, plan, lambda _: None)
        rows = sorted((row for part in result.parts for row in part.to_pylist()), key=lambda row: (row["task"], row["seq"]))
        self.results: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
        self.entries: dict[tuple[str, int], dict[bytes, tuple[Any, ...]]] = {}
        for row in rows:
            what, at = (row["value"], row["timestamp_ms"], row["headers"]), (row["name"], row["partition"])
            if row["kind"] == RowKind.SINK:
                self.results.setdefault(at, []).append((row["key"], *what))
            else:
                entries = self.entries.setdefault(at, {})
                assert row["key"] not in entries, "slices write different keys"
                entries[row["key"]] = what
        self.ends = {tuple(sorted(end.checkpoint.inputs)): without_firsts(end) for end in result.ends}

    def by_key(self) -> dict[tuple[str, int, bytes | None], list[tuple[Any, ...]]]:
        """Return the results of each key, in order."""
        found: dict[tuple[str, int, bytes | None], list[tuple[Any, ...]]] = {}
        for (topic, partition), rows in self.results.items():
            for key, *what in rows:
                found.setdefault((topic, -1 if key is None else partition, key), []).append(tuple(what))
        return {at: sorted(rows, key=repr) if at[2] is None else rows for at, rows in found.items()}


def send(log: Log, name: str, records: list[Sent]) -> None:
    producer = log.producer()
    for topic, time_ms, key, value, partition, headers in records:
        producer.send(f"{name}-{topic}", value, key=key, timestamp_ms=time_ms, partition=partition, headers=headers)
    producer.flush()
    producer.close()


_numbers = count()


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    """Slices are taken with the kernels, where they can be loaded; the whole without."""
    kernel_loader().load("sessions", "sliding", "meetings")


@settings(max_examples=8, deadline=None)
@given(
    kind=st.sampled_from((*JOINS, *OTHERS, *TABLES)),
    seed=st.integers(0, 2**32),
    length=st.integers(0, 120),
    slices=st.integers(2, 3),
)
def test_slices_together_equal_the_whole(log: Log, kind: str, seed: int, length: int, slices: int) -> None:
    check_slices_equal_the_whole(log, kind, make_records(seed, length, partitions_of(kind)), slices)


@pytest.mark.parametrize("kind", [*JOINS, *OTHERS, *TABLES])
def test_slices_of_each_kind_equal_the_whole(log: Log, kind: str) -> None:
    check_slices_equal_the_whole(log, kind, make_records(1, 120, partitions_of(kind)), 2)


@pytest.mark.parametrize("has_kernels", [True, False])
def test_which_sliding_windows_are_seen_hangs_on_those_of_other_slices_too(
    log: Log, monkeypatch: pytest.MonkeyPatch, *, has_kernels: bool
) -> None:
    def in_pieces(*wanted: Any) -> Iterator[Chunk]:
        for chunk in read_history(*wanted):
            yield from (chunk.slice(at, min(at + 70, len(chunk))) for at in range(0, len(chunk), 70))

    monkeypatch.setattr(steps, "read_history", in_pieces)
    rng, value = random.Random(3), b'{"shop":"s","item":"a","amount":1,"price":2}'
    times = [i + 20 - rng.randrange(12) * rng.randrange(2) for i in range(1500)]
    records: list[Sent] = [("sales", time_ms, rng.choice([b"v", b"w", b"x", b"y"]), value, 0, ()) for time_ms in times]
    with nullcontext() if has_kernels else kernel_loader().held_back():
        check_slices_equal_the_whole(log, "short-sliding", records, 2)


def load_of(name: str, kind: str, sales: str, refunds: str) -> partial[Plan]:
    make = families.make_plan if kind in TABLES else make_plan
    return partial(make, name, kind, sales, refunds)


def partitions_of(kind: str) -> int:
    return PARTITIONS if kind.endswith("then-windowed") else 1


def check_slices_equal_the_whole(log: Log, kind: str, records: list[Sent], slices: int) -> None:
    name = f"app{next(_numbers)}"
    topics = f"{name}-sales", f"{name}-refunds"
    partitions = partitions_of(kind)
    for topic in topics:
        log.admin().create_topic(topic, partitions=partitions)
    send(log, name, records)
    load = load_of(name, kind, *topics)
    plan = load()
    ranges = plan_backfill(load, log.where).ranges
    step = StepPlan(load, log.where, ranges, prepare_topics(plan, log.admin()).partitions, {})
    with kernel_loader().held_back():
        whole = Computed(step, plan, 1)
    sliced = Computed(step, plan, slices)
    assert sliced.by_key() == whole.by_key()
    assert sliced.ends == whole.ends
    if kind in IN_ORDER:
        assert sliced.results == whole.results
    if kind not in JOINS:
        assert sliced.entries == whole.entries
    elif len(plan.subtopologies) == 1:
        more = make_records(len(records), 60, partitions)
        latest = max((record[1] for record in records), default=0)
        sub = plan.subtopologies[0]
        assert went_on(sub, sliced, more, latest) == went_on(sub, whole, more, latest)


def went_on(sub: SubTopology, before: Computed, records: list[Sent], latest_ms: int) -> list[Any]:
    """Return what the task of partition 0 puts out for more records that goes on from what a step has left."""
    partition = 0
    topics = {topic.rpartition("-")[2]: topic for topic in sub.program.sources.values()}
    inputs, found = [], []
    end = before.ends[tuple(sorted(TopicPartition(topic, partition) for topic in topics.values()))]
    for short, topic in topics.items():
        tp = TopicPartition(topic, partition)
        part = [each for each in records if each[0] == short and each[4] == partition]
        start = end.checkpoint.inputs[tp]
        headers = [r[5] for r in part]
        chunk = Chunk.from_columns(
            topic, [r[2] for r in part], [r[3] for r in part], [r[1] + latest_ms for r in part], headers=headers
        )
        chunk.partition, chunk.offsets, chunk.next_offset = partition, chunk.offsets + start, start + len(part)
        inputs.append(ReplayInput(tp, by_own_times([chunk] if part else []), start + len(part)))

    def stored(store: str) -> list[Chunk]:
        rows = before.entries.get((store, partition), {})
        keys, values, times = list(rows), [row[0] for row in rows.values()], [row[1] for row in rows.values()]
        return [Chunk.from_columns(store, keys, values, times)] if rows else []

    with TemporaryDirectory() as folder:
        for part in Replay(sub, partition, inputs, "app", Path(folder, "task"), start=end.checkpoint, stored=stored):
            if isinstance(part, OutputRows):
                found += ((row.key, row.value, row.timestamp_ms) for row in part.records.records())
            elif isinstance(part, TaskEnd):
                found.append((part.records, dict(part.problems)))
    return found


@pytest.mark.parametrize("kind", [*JOINS, *OTHERS, *TABLES])
def test_what_can_be_cut(kind: str) -> None:
    sub = next(sub for sub in load_of("app", kind, "sales", "refunds")().subtopologies if sub.program.stores)
    region = region_of(sub)
    if kind == "window-of-window":
        assert region is not None
        assert region.stores == {next(spec.name for spec in sub.program.stores if spec.window is not None)}
    elif kind in ("ungraced-sliding", "bounded-suppressed", "left-then-windowed") or kind.endswith("then-summed"):
        assert region is None
    elif kind.startswith("suppressed"):
        assert region is not None
        assert region.stores == {spec.name for spec in sub.program.stores if spec.name.endswith("suppress")}
    elif kind == "looked-up-windowed":
        assert region is not None
        assert len(region.stores) == 1  # the table is there in full in each slice: its rows decide which sales come to the window
    else:
        assert region is not None
        assert region.stores == {spec.name for spec in sub.program.stores} - set(sub.global_stores())


def test_tasks_are_cut_where_partitions_leave_cores_idle() -> None:
    plan = make_plan("app", "sessions", "sales", "refunds")
    for records, cores, expected in [
        (SLICES_FROM_RECORDS, 2, PARTITIONS),
        (SLICES_FROM_RECORDS, 5, 3 * PARTITIONS),
        (SLICES_FROM_RECORDS, 1000, SLICES_MAX * PARTITIONS),
        (SLICES_FROM_RECORDS - 1, 1000, PARTITIONS),
    ]:
        half = records // 2
        ranges = {TopicPartition("sales", p): OffsetRange("sales", p, 0, half + p * (records % 2)) for p in range(PARTITIONS)}
        step = StepPlan(loader("app", "sessions", "sales", "refunds"), "nowhere:1", ranges, {"sales": PARTITIONS}, {})
        (stage,) = stages_of(step, plan, records_per_range=100, cores=cores, least=records + 1, slices=None)
        assert stage.count == expected


def test_a_join_without_grace_takes_records_in_order_together(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"app{next(_numbers)}"
    topics = f"{name}-sales", f"{name}-refunds"
    for topic in topics:
        log.admin().create_topic(topic, partitions=1)
    value = b'{"shop":"s","item":"a","amount":1,"price":2}'
    send(log, name, [(topic, i // 2, b"k%d" % (i // 2), value, 0, ()) for i in range(400) for topic in ("sales", "refunds")])
    load = loader(name, "ungraced", *topics)
    plan = load()
    step = StepPlan(load, log.where, plan_backfill(load, log.where).ranges, prepare_topics(plan, log.admin()).partitions, {})
    whole = Computed(step, plan, 1)
    taken: list[int] = []
    process_all = StreamJoinWork.process_all

    def noting(work: StreamJoinWork, batches: Sequence[tuple[str, Batch]]) -> None:
        taken.append(sum(len(batch) for _, batch in batches))
        process_all(work, batches)

    monkeypatch.setattr(StreamJoinWork, "process_all", noting)
    assert Computed(step, plan, 2).results == whole.results
    assert sum(taken) == 800
    assert len(taken) < 20


@pytest.mark.parametrize("kind", ["inner", "looked-up"])
def test_tasks_of_two_topics_are_cut_as_those_of_one(kind: str) -> None:
    ranges = {TopicPartition(topic, 0): OffsetRange(topic, 0, 0, SLICES_FROM_RECORDS) for topic in ("sales", "refunds")}
    load = loader("app", kind, "sales", "refunds")
    step = StepPlan(load, "nowhere:1", ranges, dict.fromkeys(("sales", "refunds"), 1), {})
    (stage,) = stages_of(step, load(), records_per_range=None, cores=2, slices=None)
    assert stage.slices == 2
