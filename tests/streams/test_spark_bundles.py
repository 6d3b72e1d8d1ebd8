"""Records leave bundles as they went in: each partition's in order, those of slices in the order of their causes; no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from logflume.log import Chunk
from logflume.streams.seams import OutputTopic
from logflume.streams.spark.bundles import BUNDLE_BYTES, Bundled, unbundled, unpacked
from logflume.streams.spark.replay import ChangelogRows, OutputRows
from logflume.streams.spark.rows import RowKind, RowWriter, former_rows, row_of_bytes

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
