"""Records leave bundles as they went in: each partition's in order, those of slices in the order of their causes; no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from logflume.log import Chunk
from logflume.streams.seams import OutputTopic
from logflume.streams.spark import bundles
from logflume.streams.spark.bundles import BUNDLE_BYTES, Bundled, Spread, spread, unbundled, unpacked
from logflume.streams.spark.bundles import bundled as in_bundles
from logflume.streams.spark.partials import PartialRows, RangeEnd
from logflume.streams.spark.replay import ChangelogRows, OutputRows
from logflume.streams.spark.rows import RowKind, RowWriter, former_rows, row_of_bytes, wake_rows

PARTITIONS = 3
OUTPUTS = {"sink": OutputTopic("out")}
Record = tuple[bytes | None, bytes | None, int]


def rows_of(records: list[Record], task: int, causes: list[int] | None = None) -> Iterator[Any]:
    """Yield what one task, or a slice of it, puts out."""
    if not records:
        return
    keys, values, times = (list(column) for column in zip(*records, strict=True))
    places = None if causes is None else np.array(causes, np.int64)
    chunk = Chunk.from_columns("out", keys, values, times)
    yield from RowWriter(OUTPUTS, {"out": PARTITIONS}, task).rows(OutputRows("sink", chunk, None, places))


def bundled(batches: Iterator[Any]) -> list[dict[str, Any]]:
    """Return the rows that Spark would hold."""
    return [row for batch in Bundled(lambda each: each)(batches) for row in batch.to_pylist()]


def read(rows: list[dict[str, Any]], size: int) -> dict[tuple[RowKind, str, int], list[tuple[Any, ...]]]:
    """Return what a writer reads if Spark sorts the rows and gives so many in a batch."""
    for row in rows:
        row.setdefault("stage", 0)
    rows = sorted(rows, key=lambda row: [row[name] for name in ("name", "partition", "stage", "task", "seq")])
    schema = pa.schema([*row_of_bytes(RowKind.SINK, "", 0, b"").schema, pa.field("stage", pa.int32())])
    batches = [pa.RecordBatch.from_pylist(rows[at : at + size], schema) for at in range(0, len(rows), size)]
    found: dict[tuple[RowKind, str, int], list[tuple[Any, ...]]] = {}
    for kind, name, partition, records in unbundled(batches):
        columns = (records.column(each).to_pylist() for each in ("key", "value", "timestamp_ms", "headers"))
        found.setdefault((kind, name, partition), []).extend(zip(*columns, strict=True))
    return found


RECORDS = st.lists(
    st.tuples(st.sampled_from([None, b"a", b"b", b"", "ü".encode()]), st.none() | st.binary(max_size=4), st.integers(0, 9)),
    max_size=30,
)


@given(st.lists(RECORDS, min_size=1, max_size=3), st.integers(1, 4))
def test_each_partition_keeps_its_order(tasks: list[list[Record]], size: int) -> None:
    plain: dict[int, list[Record]] = {}
    rows = []
    for task, records in enumerate(tasks):
        for batch in rows_of(records, task):
            for row in batch.to_pylist():
                plain.setdefault(row["partition"], []).append((row["key"], row["value"], row["timestamp_ms"]))
        rows += bundled(rows_of(records, task))
    found = read(rows, size)
    assert {p: [each[:3] for each in records] for (_, _, p), records in found.items()} == plain
    assert sum(row["timestamp_ms"] for row in rows) == sum(map(len, tasks)), "each bundle says how many it holds"


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 3), st.integers(1, 7))
def test_bundles_of_slices_are_merged_by_causes(owners: list[int], size: int, block: int) -> None:
    rows = []
    for owner in set(owners):
        causes = [cause for cause, each in enumerate(owners) if each == owner]
        parts = [causes[at : at + block] for at in range(0, len(causes), block)]
        for part in parts:
            rows += bundled(rows_of([(b"k", b"%d" % cause, cause) for cause in part], 0, part))
    found = read(rows, size)
    (times,) = [[each[2] for each in records] for records in found.values()] or [[]]
    assert times == list(range(len(owners)))


def test_a_bundle_is_bounded_and_a_large_record_is_one() -> None:
    large = b"x" * (2 * BUNDLE_BYTES)
    records: list[Record] = [(b"k", b"%07d" % i * 40, i) for i in range(10_000)]
    records[777] = (b"k", large, 777)
    rows = bundled(rows_of(records, 0))
    by_count = [(unpacked(row["value"]).num_rows, len(row["value"])) for row in rows]
    assert max(size for count, size in by_count if count > 1) < BUNDLE_BYTES + 2000
    assert [count for count, size in by_count if size > 2 * BUNDLE_BYTES] == [1]
    (found,) = read(rows, 3).values()
    assert [each[:3] for each in found] == records
    with mock.patch.object(bundles, "GIVEN_BYTES", 2 * BUNDLE_BYTES):
        sizes = [each.nbytes for each in Bundled(lambda each: each)(rows_of(records, 0))]
    assert len(sizes) > 1
    assert max(sizes) < 5 * BUNDLE_BYTES


def test_other_rows_pass_between_bundles() -> None:
    entries = ChangelogRows("store", [b"k"], [None], [7])
    rows = bundled(RowWriter({}, {}, 1).rows(entries))
    former = [row | {"stage": -1} for row in former_rows({"store": 2}).to_pylist()]
    found = read(rows + former, 2)
    assert found == {
        (RowKind.FORMER, "store", 0): [(None, None, 0, None)],
        (RowKind.FORMER, "store", 1): [(None, None, 0, None)],
        (RowKind.CHANGELOG, "store", 1): [(b"k", None, 7, None)],
    }


def test_headers_go_along() -> None:
    chunk = Chunk.from_columns("out", [b"k", b"k"], [b"1", b"2"], [0, 1], headers=[(), (("h", b"v"),)])
    rows = bundled(RowWriter(OUTPUTS, {"out": 1}, 0).rows(OutputRows("sink", chunk, None, None)))
    ((_, _, _, none), (_, _, _, some)) = read(rows, 1)[RowKind.SINK, "out", 0]
    assert none is None
    assert some is not None


PASSING = {"one": OutputTopic("one", is_repartition=True), "two": OutputTopic("two", is_repartition=True)}
BY_TIME, BY_RANGE = ("partition", "name", "time_ms", "task", "seq"), ("partition", "task", "seq")
Row = dict[str, Any]


def sorted_as(rows: list[Row], order: tuple[str, ...]) -> list[Row]:
    """Return rows as Spark sorts them."""
    return sorted(rows, key=lambda row: [row[name] for name in order])


def taken(rows: list[Row], size: int) -> list[Row]:
    """Return the rows that a stage is given of these, if Spark gives so many in a batch."""
    schema = row_of_bytes(RowKind.SINK, "", 0, b"").schema
    batches = (pa.RecordBatch.from_pylist(rows[at : at + size], schema) for at in range(0, len(rows), size))
    return [row for batch in Spread(iter)(batches) for row in batch.to_pylist()]


@st.composite
def passed(draw: st.DrawFn) -> list[Any]:
    """Return batches of what some tasks, or slices of one, give to repartition topics, each in the order of time."""
    found, are_slices = [], draw(st.booleans())
    for task in range(draw(st.integers(1, 3))):
        writer, steps = RowWriter(PASSING, {"one": 2, "two": 3}, 0 if are_slices else task), [0]
        for node in draw(st.lists(st.sampled_from(["one", "two"]), max_size=4)):
            first = len(steps)
            steps += draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))
            causes = np.arange(first, len(steps)) * 3 + task
            times = causes // 6 if are_slices else np.cumsum(steps)[first:]  # of slices it follows from the cause
            keys = [draw(st.sampled_from([b"a", b"b", b"c", None])) for _ in causes]
            chunk = Chunk.from_columns(node, keys, [b"%d" % cause for cause in causes], times.tolist())
            found += list(writer.rows(OutputRows(node, chunk, times, causes if are_slices else None)))
    return found


@given(passed(), st.integers(1, 4), st.integers(1, 600), st.integers(1, 9), st.integers(0, 12))
def test_what_a_stage_takes_comes_in_the_order_of_time(
    batches: list[Any], size: int, limit: int, together: int, before_ms: int
) -> None:
    plain = [row for batch in batches for row in batch.to_pylist()]
    rows = [row for batch in batches for each in in_bundles(batch, limit) for row in each.to_pylist()]
    assert sum(row["timestamp_ms"] for row in rows) == len(plain)
    for row in (*plain, *rows):  # as times of a range are put right by those before it
        row["time_ms"] = max(row["time_ms"], before_ms)
    woken = wake_rows([0, 1]).to_pylist()
    with mock.patch.object(bundles, "SORTED_ROWS", together):
        assert taken(sorted_as(woken + rows, BY_TIME), size) == sorted_as(woken + plain, BY_TIME)


RANGES = st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.integers(1, 40), max_size=6)


@given(RANGES, st.integers(1, 3), st.integers(1, 300))
def test_entries_of_ranges_come_in_the_order_of_ranges(ranges: dict[tuple[int, int], int], size: int, limit: int) -> None:
    plain, rows = [], []
    for (task, number), count in ranges.items():
        writer, numbers = RowWriter({}, {"by-key": 2}, task, number=number), range(count)
        chunk = Chunk.from_columns("by-key", [b"%d" % n for n in numbers], [b"x" * n for n in numbers], list(numbers))
        entries = PartialRows("by-key", "store", chunk)
        batches = [batch for part in (entries, RangeEnd("sub", task, 7, {}, count, {})) for batch in writer.rows(part)]
        plain += [row for batch in batches for row in batch.to_pylist()]
        rows += [row for batch in batches for each in in_bundles(batch, limit) for row in each.to_pylist()]
    assert taken(sorted_as(rows, BY_RANGE), size) == sorted_as(plain, BY_RANGE)


def test_no_more_is_held_than_may_come_behind() -> None:
    """Tasks that one after the other give what is of one time: what came before has been given by then."""
    batches = []
    for task in range(20):
        chunk = Chunk.from_columns("one", [b"a"] * 500, [b"x" * 200] * 500, [5] * 500)
        batches += list(RowWriter(PASSING, {"one": 1}, task).rows(OutputRows("one", chunk, np.full(500, 9), None)))
    whole = pa.Table.from_batches([each for batch in batches for each in in_bundles(batch, 20_000)])
    rows = whole.combine_chunks().to_batches(max_chunksize=1)
    taken_rows = given_rows = 0

    def counted() -> Iterator[Any]:
        nonlocal taken_rows
        for row in rows:
            taken_rows += row.column("timestamp_ms")[0].as_py()
            yield row

    with mock.patch.object(bundles, "SORTED_ROWS", 1_000):
        for batch in spread(counted()):
            assert taken_rows - given_rows < 3_000
            given_rows += batch.num_rows
    assert given_rows == 20 * 500
