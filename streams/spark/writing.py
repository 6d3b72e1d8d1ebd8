"""Writing a step's rows into the transaction of its hand-over: by executors, each those it holds, or in this process.

A task that is run a second time cannot go on: what its first run wrote is in the transaction, in the partitions that it would
write again. It says so, and the driver has everything written again in a new transaction. Should a second run ever go unnoticed,
then the broker refuses it, because sequences of a partition go on and do not begin again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from logflume.log import Chunk, LogflumeError, OpenTransaction, Producer, connect

from .rows import RowKind, unpack_headers

WRITTEN = "kind INT, records BIGINT, problem STRING"
BATCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows go.

    Attributes:
        changelogs: store -> its changelog topic.
        failpoint: called as "writing" once rows are on their way to the log.
    """

    transaction: OpenTransaction
    changelogs: Mapping[str, str]
    failpoint: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Written:
    """What all writers say: records of results and of changelogs; `is_partial`: a task ran twice, so it has to be done again."""

    results: int
    entries: int
    is_partial: bool
    problem: str | None

    @classmethod
    def of(cls, said: Iterable[Any]) -> Written:
        """Add up the Arrow batches or tables of all writers."""
        counts: Counter[int] = Counter()
        problems: list[str] = []
        for part in said:
            columns = (part.column(name).to_pylist() for name in ("kind", "records", "problem"))
            for kind, records, problem in zip(*columns, strict=True):
                counts[kind] += records
                problems += [problem] if problem is not None else []
        return cls(counts[RowKind.SINK], counts[RowKind.CHANGELOG], counts[_PARTIAL] > 0, next(iter(sorted(problems)), None))


_PARTIAL = -1
"""The kind of the row by which a task says that it ran before."""
_PROBLEM = -2


@dataclass(frozen=True, slots=True)
class RowsToLog:
    """The function mapped over Arrow batches of ROWS (sinks and changelogs): writes them; gives WRITTEN, how many of each kind.

    All rows of a topic's partition come to one call, in order.
    """

    where: str
    target: Target

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        if _is_run_again():
            yield _said({_PARTIAL: 1})
            return
        try:
            counts = self._write(batches)
        except LogflumeError as error:
            yield _said({_PROBLEM: 1}, str(error))
            return
        yield _said(counts)

    def _write(self, batches: Iterator[Any]) -> Mapping[int, int]:
        counts: Counter[int] = Counter()
        producer: Producer | None = None
        with ExitStack() as stack:
            for batch in batches:
                for kind, topic, chunk in chunks_of(batch, self.target.changelogs):
                    if producer is None:
                        log = stack.enter_context(connect(self.where))
                        producer = log.join_transaction(self.target.transaction, batch_size=BATCH_BYTES)
                    producer.send_chunk(topic, chunk, partition=chunk.partition)
                    counts[kind] += len(chunk)
                    self.target.failpoint("writing")
            if producer is not None:
                producer.flush()
        return counts


def _is_run_again() -> bool:
    if "pyspark" not in sys.modules:
        return False
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def _said(counts: Mapping[int, int], problem: str | None = None) -> Any:
    import pyarrow as pa

    rows = {"kind": pa.array(list(counts), pa.int32()), "records": pa.array(list(counts.values()), pa.int64())}
    return pa.RecordBatch.from_pydict(rows | {"problem": pa.array([problem] * len(counts), pa.string())})


def chunks_of(batch: Any, changelogs: Mapping[str, str]) -> Iterator[tuple[RowKind, str, Chunk]]:
    """Yield (kind, topic, chunk) of the rows of each topic and partition, in their order."""
    if not batch.num_rows:
        return
    encoded = batch.column("name").dictionary_encode()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    kinds, partitions = batch.column("kind").to_numpy(), batch.column("partition").to_numpy()
    order = np.lexsort((partitions, codes, kinds))
    sorted_by = np.stack([column[order] for column in (kinds, codes, partitions)])
    edges = [0, *(np.flatnonzero((sorted_by[:, 1:] != sorted_by[:, :-1]).any(axis=0)) + 1).tolist(), len(order)]
    rows = batch.take(order)
    for first, stop in pairwise(edges):
        kind, name, partition = RowKind(sorted_by[0, first]), names[sorted_by[1, first]], int(sorted_by[2, first])
        topic = changelogs[name] if kind is RowKind.CHANGELOG else name
        yield kind, topic, _chunk(topic, partition, rows.slice(first, stop - first))


def _chunk(topic: str, partition: int, rows: Any) -> Chunk:
    blobs = rows.column("headers")
    headers = [unpack_headers(blob) for blob in blobs.to_pylist()] if blobs.null_count < len(blobs) else None
    keys, values, times = (rows.column(name).to_pylist() for name in ("key", "value", "timestamp_ms"))
    return Chunk.from_columns(topic, keys, values, times, partition=partition, headers=headers)
