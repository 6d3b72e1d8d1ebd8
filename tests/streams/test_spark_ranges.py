"""Offset ranges computed on their own and merged equal one pass over all records, whatever the ranges. Without Spark."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logflume.streams as lf
from logflume.log import Chunk, InvalidInput, Log, TopicPartition, connect
from logflume.streams.kernels import kernel_loader
from logflume.streams.operators.aggregate_columns import ColumnEntries
from logflume.streams.operators.aggregate_objects import ObjectEntries
from logflume.streams.runtime.topics import prepare_topics
from logflume.streams.seams import Plan
from logflume.streams.spark.backfill import plan_backfill
from logflume.streams.spark.forms import RangeForm, forms_of
from logflume.streams.spark.local import LocalRunner
from logflume.streams.spark.partials import Merging, PartialRows, RangeEnd, run_range
from logflume.streams.spark.ranges import OffsetRange
from logflume.streams.spark.replay import ChangelogRows, OutputRows, Replay, ReplayInput, TaskEnd, Work, by_own_times
from logflume.streams.spark.rows import RANGE_SHIFT, RowKind, RowWriter, parts_of
from logflume.streams.spark.stages import stages_of
from logflume.streams.spark.steps import StepPlan
from logflume.streams.spark.turns import turns_of
from logflume.streams.state import Checkpoint, TaskState
from logflume.streams.state.windows import SegmentLayout, window_start

from ._range_apps import EXACT, KINDS, NUMBERS, loader, make_plan
from ._spark_apps import without_firsts

PARTITIONS = 2
SALES = TopicPartition("sales", 0)
Sent = tuple[int, bytes | None, bytes | None, int]


def make_sales(seed: int, length: int) -> list[Sent]:
    """Return sales in about the order of time: some late, some out of order, some without key or value, some broken."""
    rng = random.Random(seed)
    now_ms, jump_ms = 0, rng.choice([100, 10_000, 60_000])
    records: list[Sent] = []
    for _ in range(length):
        now_ms += rng.randrange(jump_ms)
        back_ms = rng.randrange(4 * jump_ms) if rng.random() < 0.5 else 0
        amount = rng.choice([None, 2**63 - 1, 13, *(rng.randrange(-100, 100) for _ in range(6))])
        price = rng.choice([None, -0.0, 0.0, rng.uniform(-10, 10)])
        sale = json.dumps({"shop": "s", "item": rng.choice(["a", "b", "ü", None]), "amount": amount, "price": price}).encode()
        value = rng.choice([b"{broken", None, sale]) if rng.random() < 0.1 else sale
        key = None if rng.random() < 0.05 else rng.choice([b"x", b"y", b"z", b""])
        records.append((max(now_ms - back_ms, 0), key, value, rng.randrange(PARTITIONS)))
    return records


records_of = st.builds(make_sales, st.integers(0, 2**32), st.integers(0, 80))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with connect(str(tmp_path_factory.mktemp("ranges") / "log")) as opened:
        yield opened


class Computed:
    """What a step puts out, in a form to compare: the newest result and changelog record of each key, and the ends."""

    def __init__(self, step: StepPlan, plan: Plan, records_per_range: int | None) -> None:
        self.newest: dict[tuple[int, str, int, bytes], tuple[Any, ...]] = {}
        self.streamed: dict[tuple[str, int, int], list[Any]] = {}
        result = LocalRunner(records_per_range).run(step, plan, lambda _: None)
        for table in result.parts:
            for row in table.to_pylist():
                kept = (row["value"], row["timestamp_ms"], row["headers"])
                if row["key"] is None:
                    continue  # goes to any partition
                self.newest[row["kind"], row["name"], row["partition"], row["key"]] = kept
                if row["kind"] == RowKind.SINK:
                    self.streamed.setdefault((row["name"], row["partition"], row["task"]), []).append((row["key"], *kept))
        self.ends = {tuple(end.checkpoint.inputs): end for end in result.ends}

    def problems(self) -> dict[str, int]:
        """Return how many records were left out by reason."""
        total: dict[str, int] = {}
        for end in self.ends.values():
            for reason, number in end.problems.items():
                total[reason] = total.get(reason, 0) + number
        return total


def without_problems(end: TaskEnd) -> tuple[Any, ...]:
    """Return an end but for what was left out, which a combined topic counts in another partition."""
    return end.checkpoint.inputs, end.checkpoint.input_times_ms, end.checkpoint.store_times_ms, end.records


_numbers = count()


@settings(max_examples=15, deadline=None)
@given(kind=st.sampled_from(KINDS), records=records_of, size=st.integers(1, 20))
def test_a_step_by_ranges_equals_one_pass(log: Log, kind: str, records: list[Sent], size: int) -> None:
    name = f"app{next(_numbers)}"
    topic = f"{name}-sales"
    log.admin().create_topic(topic, partitions=PARTITIONS)
    producer = log.producer()
    for time_ms, key, value, partition in records:
        producer.send(topic, value, key=key, timestamp_ms=time_ms, partition=partition)
    producer.flush()
    producer.close()
    plan = make_plan(name, kind, topic)
    ranges = plan_backfill(loader(name, kind, topic), log.where).ranges
    partitions = prepare_topics(plan, log.admin()).partitions
    with TemporaryDirectory() as one, TemporaryDirectory() as many:
        whole = Computed(StepPlan(loader(name, kind, topic), log.where, ranges, partitions, {}, one), plan, None)
        ranged = Computed(StepPlan(loader(name, kind, topic), log.where, ranges, partitions, {}, many), plan, size)
    assert ranged.newest == whole.newest
    assert ranged.problems() == whole.problems()
    assert {k: without_problems(v) for k, v in ranged.ends.items()} == {k: without_problems(v) for k, v in whole.ends.items()}
    if kind == "plain":
        items = {at: rows for at, rows in whole.streamed.items() if at[0].endswith("-items")}
        assert {at: rows for at, rows in ranged.streamed.items() if at[0].endswith("-items")} == items


@functools.cache
def compiled(kind: str) -> tuple[Plan, RangeForm]:
    """Return the plan of a topology with one sub-topology, and its form."""
    plan = make_plan("app", kind)
    return plan, forms_of(plan).by_name["sales"]


def chunk_of(records: list[Sent], start: int, stop: int) -> Chunk:
    """Return records start..stop as read from the log."""
    part = records[start:stop]
    chunk = Chunk.from_columns("sales", [k for _, k, _, _ in part], [v for _, _, v, _ in part], [t for t, _, _, _ in part])
    chunk.partition = 0
    chunk.offsets = chunk.offsets + start
    chunk.next_offset = start + len(part)
    return chunk


def replayed(
    plan: Plan, state_dir: Path, chunks: Iterator[Chunk], end: int, work: Work | None = None, start: Checkpoint | None = None
) -> list[Any]:
    """Return what a task puts out: newest results, changelog records and the end."""
    start = start or Checkpoint()
    inputs = [ReplayInput(SALES, by_own_times(chunks), end)]
    newest: dict[bytes | None, Any] = {}
    changed: dict[bytes, Any] = {}
    last = None
    for part in Replay(plan.subtopologies[0], 0, inputs, "app", state_dir, start=start, flush_records=5, work=work):
        match part:
            case OutputRows() if part.node == "app-out":
                newest.update((row.key, (row.value, row.timestamp_ms)) for row in part.records.records())
            case ChangelogRows():
                changed.update(zip(part.keys, zip(part.values, part.timestamps_ms, strict=True), strict=True))
            case TaskEnd():
                last = without_firsts(part)
    return [newest, changed, last]


def living(results: dict[bytes, Any]) -> dict[bytes, Any]:
    """Return the results that are there: tombstones come too of those that were there between two task commits."""
    return {key: result for key, result in results.items() if result[0] is not None}


def keeping_nothing(state: TaskState, memory_bytes: int) -> None:
    """Stand in for `TaskState.hold`: what is on disk goes from memory at each commit."""
    for store in state.stores.values():
        store.memory_bytes = 1


def expired(plan: Plan, keys: set[bytes], end: TaskEnd) -> bool:
    """Return whether all keys are of windows that have expired: whether those are still stored depends on the task commits."""
    window = plan.subtopologies[0].program.stores[0].window
    (time_ms,) = end.checkpoint.store_times_ms.values()
    return window is not None and all(window_start(key) < SegmentLayout(window).oldest_alive(time_ms) for key in keys)


def merged_rows(form: RangeForm, records: list[Sent], edges: list[int]) -> Iterator[PartialRows | RangeEnd]:
    """Yield what ranges give, as it comes to a task: written as rows and read back, those of several ranges at a time."""
    writer, batches = RowWriter(form.outputs, {}, 0), list[Any]()
    for start, stop in pairwise(edges):
        found = run_range(form, SALES, iter([chunk_of(records, start, stop)]), {}, {})
        kept = [part for part in found if part is not None and not isinstance(part, OutputRows)]
        batches += [batch for part in kept for batch in writer.rows(part)]
    for batch in pa.Table.from_batches(batches).combine_chunks().to_batches(max_chunksize=7) if batches else ():
        yield from parts_of(batch)


@pytest.mark.parametrize("has_kernels", [False, True])
@pytest.mark.parametrize("kind", EXACT)
@settings(max_examples=25, deadline=None)
@given(records=records_of, cuts=st.sets(st.integers(0, 80), max_size=8), begun=st.integers(0, 30), evicts=st.booleans())
def test_ranges_merged_equal_one_pass(
    kind: str, has_kernels: bool, records: list[Sent], cuts: set[int], begun: int, evicts: bool
) -> None:
    """Going on from what a step before has left on disk, with all of it in memory afterwards or nothing."""
    if has_kernels:
        pytest.importorskip("numba", reason="the kernels need numba")
        kernel_loader().load()
    plan, form = compiled(kind)
    begun, end = min(begun, len(records)), len(records)
    edges = sorted({begun, end, *(cut for cut in cuts if begun < cut < end)})
    with TemporaryDirectory() as root, ExitStack() as stack:
        by_columns, as_objects = (
            stack.enter_context(mock.patch.object(each, "absorb", autospec=True, side_effect=each.absorb))
            for each in (ColumnEntries, ObjectEntries)
        )
        if not has_kernels:
            stack.enter_context(kernel_loader().held_back())
        if evicts:
            stack.enter_context(mock.patch.object(TaskState, "hold", keeping_nothing))
        results, before = dict[bytes, Any](), Checkpoint()
        for name in ("whole", "merged") if begun else ():
            results, _, at = replayed(plan, Path(root, name), iter([chunk_of(records, 0, begun)]), begun)
            before = at.checkpoint
        chunks = [chunk_of(records, begun, end)] if begun < end else []
        whole = replayed(plan, Path(root, "whole"), iter(chunks), end, start=before)
        merging = Merging(form, "sales", merged_rows(form, records, edges))
        merged = replayed(plan, Path(root, "merged"), iter(()), end, merging.run, before)
        used, other = (by_columns, as_objects) if has_kernels and kind in NUMBERS else (as_objects, by_columns)
    assert used.called or not whole[1]
    assert not other.called
    assert living(results | merged[0]) == living(results | whole[0])
    both = merged[1].keys() & whole[1].keys()
    assert {key: merged[1][key] for key in both} == {key: whole[1][key] for key in both}
    assert merged[1].keys() == whole[1].keys() or expired(plan, merged[1].keys() ^ whole[1].keys(), whole[2])
    assert merged[2] == whole[2]


@pytest.mark.parametrize(
    ("kind", "ranged", "combined"),
    [
        ("windowed", ["sales"], []),
        ("hopping", ["sales"], []),
        ("plain", ["sales"], []),
        ("floats", [], []),
        ("rekeyed", ["sales"], ["app-sales-by-item-repartition"]),
        ("rekeyed-windowed", ["sales"], []),
        ("two-repartitions", ["sales"], []),
    ],
)
def test_what_can_be_computed_by_ranges(kind: str, ranged: list[str], combined: list[str]) -> None:
    forms = forms_of(make_plan("app", kind))
    assert (list(forms.by_name), list(forms.combined)) == (ranged, combined)


def test_ranges_are_used_where_partitions_leave_cores_idle_or_entries_are_shuffled() -> None:
    for kind, cores, expected in [
        ("plain", 3, ["RangeRunner", "TaskRunner"]),
        ("plain", 2, ["TaskRunner"]),
        ("rekeyed", 2, ["RangeRunner", "TaskRunner", "TaskRunner"]),
        ("rekeyed-windowed", 2, ["TaskRunner", "TaskRunner"]),
    ]:
        plan = make_plan("app", kind)
        ranges = {TopicPartition("sales", p): OffsetRange("sales", p, 0, 1000) for p in range(PARTITIONS)}
        names = {topic for sub in plan.subtopologies for topic in sub.program.sources.values()}
        step = StepPlan(loader("app", kind), "nowhere:1", ranges, dict.fromkeys(names, PARTITIONS), {}, "")
        stages = stages_of(step, plan, records_per_range=100, cores=cores)
        assert [type(stage.work).__name__ for stage in stages] == expected, kind
        short = stages_of(step, plan, records_per_range=100, cores=cores, least=PARTITIONS * 1000 + 1)
        assert ("RangeRunner" in [type(stage.work).__name__ for stage in short]) is (kind == "rekeyed")


@pytest.mark.parametrize(("cores", "expected"), [(3, 21), (7, 21), (20, 20), (40, 40), (400, 80)])
def test_ranges_are_cut_so_that_no_core_is_idle_while_others_take_the_last_ones(cores: int, expected: int) -> None:
    plan = make_plan("app", "plain")
    step = StepPlan(loader("app", "plain"), "nowhere:1", {SALES: OffsetRange(*SALES, 0, 2000)}, {"sales": 1}, {}, "")
    ranged, _ = stages_of(step, plan, records_per_range=100, cores=cores)
    assert ranged.count == expected


def test_an_aggregate_whose_late_records_are_read_is_replayed() -> None:
    app = lf.App("late")
    counts = app.stream("sales").group_by_key().window(lf.tumbling(hours=1)).count(name="counts")
    assert "sales" in forms_of(app.plan()).by_name
    counts.late().to("late")
    assert "sales" not in forms_of(app.plan()).by_name


def test_topics_that_records_say_are_no_work_for_a_backfill() -> None:
    app = lf.App("routes")
    app.stream("sales").to(lf.col.shop, topics=["a"])
    with pytest.raises(InvalidInput, match="records say their topics themselves"):
        turns_of(app.plan())


def test_where_sinks_share_a_topic_ranges_keep_their_order() -> None:
    app = lf.App("app")
    sales = app.stream("sales")
    sales.filter(lf.col.amount > 1).to("out")
    sales.filter(lf.col.amount > 2).to("out")
    form = forms_of(app.plan()).by_name["sales"]
    chunk = Chunk.from_columns("sales", [b"k"] * 3, [b'{"amount": 3}'] * 3, [0, 1, 2])
    writer = RowWriter(form.outputs, {"out": 1}, 0, number=7)
    parts = run_range(form, SALES, iter([chunk]), {}, {"out": 1})
    numbers = [n >> RANGE_SHIFT for part in parts if part for batch in writer.rows(part) for n in batch.column("seq").to_pylist()]
    assert numbers == [7] * 7  # six results, and the end of the range


def test_rows_of_several_stores_and_ranges_are_told_apart() -> None:
    writer = RowWriter({}, {}, 0)
    wanted: list[tuple[str, list[bytes | None]] | int] = [("a", [b"", b"k"]), ("b", [b"k"]), 1, ("b", [b"x"]), 2, 3]
    batches = list[Any]()
    for each in wanted:
        if isinstance(each, int):
            end = RangeEnd("sales", 0, each, {}, each, {})
            batches += writer.rows(end)
        else:
            store, keys = each
            batches += writer.rows(PartialRows(None, store, Chunk.from_columns("", keys, keys, [5] * len(keys))))
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    found = [each.records if isinstance(each, RangeEnd) else (each.store, each.records.keys()) for each in parts_of(batch)]
    assert found == wanted
