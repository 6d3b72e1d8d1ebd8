"""Records of results and changelogs on their way through Spark: those of one partition in one row, as an Arrow stream.

What is a record to the log is bytes to Spark: its JVM keeps, shuffles and sorts a row for some 10,000 of them. The order stays: a
bundle is sorted by the least `seq` in it, and where bundles overlap, those of slices of one task, whoever reads them merges them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from .rows import RowKind, row_of_bytes
from .writing import Rows, Run

BUNDLE_BYTES = 1 << 20
"""A larger record is a bundle of its own."""
BUNDLED = frozenset({RowKind.SINK, RowKind.CHANGELOG})
"""All rows of these kinds are bundles, between `Bundled` and `unbundled`; their `timestamp_ms` is the number of records."""
_INSIDE = ("seq", "key", "value", "timestamp_ms", "headers")


@dataclass(frozen=True, slots=True)
class Bundled:
    """Maps over Arrow batches what `work` maps, and gives its records in bundles."""

    work: Callable[[Iterator[Any]], Iterator[Any]]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in self.work(batches):
            yield from bundled(batch)


def bundled(batch: Any) -> Iterator[Any]:
    """Yield the rows of a batch, which are of one kind and one name: records in bundles, others as they are."""
    if batch.num_rows and batch.column("kind")[0].as_py() in BUNDLED:
        for rows in _by_partition(batch):
            yield from _bundles(rows)
    else:
        yield batch


def _by_partition(batch: Any) -> Iterator[Any]:
    """Yield the rows of each partition; those of a batch are of one kind and one name."""
    partitions = batch.column("partition").to_numpy()
    if (partitions == partitions[0]).all():
        yield batch
        return
    order = np.argsort(partitions, kind="stable")
    edges = np.flatnonzero(np.diff(partitions[order])) + 1
    for rows in np.split(order, edges):
        yield batch.take(rows)


def _bundles(rows: Any) -> Iterator[Any]:
    if rows.nbytes > BUNDLE_BYTES and rows.num_rows > 1:
        half = rows.num_rows // 2
        yield from _bundles(rows.slice(0, half))
        yield from _bundles(rows.slice(half))
        return
    kind, name, partition, task = (rows.column(each)[0].as_py() for each in ("kind", "name", "partition", "task"))
    first = int(rows.column("seq").to_numpy().min())
    value = packed(rows.select(_INSIDE))
    yield row_of_bytes(RowKind(kind), name, partition, value, task=task, seq=first, timestamp_ms=rows.num_rows)


def packed(rows: Any) -> bytes:
    """Return an Arrow batch as bytes; see `unpacked`."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return bytes(sink.getvalue())


def unpacked(value: Any) -> Any:
    """Return the rows of a bundle (bytes or an Arrow buffer) as an Arrow table: seq, key, value, timestamp_ms, headers."""
    import pyarrow as pa

    with pa.ipc.open_stream(value) as stream:
        return stream.read_all()


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a frame. `first`: the least `seq` in it."""

    place: tuple[int, str, int, int, int]
    first: int
    value: Any

    def records(self) -> Any:
        return unpacked(self.value)


def unbundled(batches: Iterable[Any]) -> Iterator[Run]:
    """Yield the records of rows that are sorted by name, partition, stage, task and `seq`; a row of another kind alone."""
    for (kind, name, partition, _, _), rows in groupby(_rows(batches), key=lambda row: row.place):
        if kind in BUNDLED:
            for records in _in_order(rows):
                yield RowKind(kind), name, partition, records
        else:
            for row in rows:
                yield RowKind(kind), name, partition, row.value


def _rows(batches: Iterable[Any]) -> Iterator[_Row]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("kind", "name", "partition", "stage", "task", "seq"))
        values = batch.column("value")
        for at, (kind, name, partition, stage, task, seq) in enumerate(zip(*columns, strict=True)):
            value = values[at].as_buffer() if kind in BUNDLED else batch.slice(at, 1)
            yield _Row((kind, name, partition, stage, task), seq, value)


def _in_order(rows: Iterable[_Row]) -> Iterator[Rows]:
    """Yield the records of bundles of one task by their `seq`, each as soon as no bundle can come that has one before it."""
    import pyarrow as pa

    waiting: Any = None
    for row in rows:
        if waiting is None:
            waiting = row.records()
            continue
        ready, waiting = _split(waiting, row.first)
        if ready.num_rows:
            yield ready
        records = row.records()
        waiting = pa.concat_tables([waiting, records]) if waiting.num_rows else records
    if waiting is not None:
        yield _split(waiting, None)[0]


def _split(records: Any, first: int | None) -> tuple[Any, Any]:
    """Return records by their `seq`: those before `first`, and the others. None: all are before it."""
    seqs = records.column("seq").to_numpy()
    if (np.diff(seqs) < 0).any():
        order = np.argsort(seqs, kind="stable")
        records, seqs = records.take(order), seqs[order]
    at = len(seqs) if first is None else int(np.searchsorted(seqs, first))
    return records.slice(0, at), records.slice(at)
