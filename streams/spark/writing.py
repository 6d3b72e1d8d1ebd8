"""Writing a step's rows to the log: by executors, each those it holds, or in this process.

What readers see goes into the one transaction of a hand-over (`OneTransaction`). A task that is run a second time cannot go on
there: what its first run wrote is in the transaction, in the partitions that it would write again. It says so, and the driver has
everything written again in a new transaction. Of a task whose stage is run again Spark does not say that it is the second run:
it is the broker who refuses it, because sequences of a partition go on and do not begin again.

Changelogs that nobody reads yet are written ahead of it (`OwnTransactions`), in as many transactions as it takes. They say of
each key what it holds, so that a task may write them once more. Whoever writes a partition takes its transactional id and then
looks who has the application: an executor that outlives its driver is fenced or stops, whichever comes first.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from logflume.log import (
    NO_TIMEOUT_MS,
    Chunk,
    ErrorCode,
    InvalidInput,
    Log,
    LogflumeError,
    OpenTransaction,
    Producer,
    TopicPartition,
    TransportError,
    connect,
)
from logflume.streams.runtime import StreamsError
from logflume.streams.runtime.failures import is_fatal
from logflume.streams.runtime.positions import read_times

from .failures import more_memory
from .ranges import OffsetRange, read_range
from .rows import BATCH_RECORDS, RowKind, unpack_headers

WRITTEN = "kind INT, records BIGINT, problem STRING"
BATCH_BYTES = 1 << 20
RECORDS_PER_TRANSACTION = 500_000
TRANSACTION_TIMEOUT_MS = 300_000
MAX_TIMEOUT = "transaction.max.timeout.ms"
MAX_TIMEOUT_DEFAULT_MS = 900_000


Send = Callable[[str, Chunk], None]
Rows = Any
"""Records as an Arrow batch or table: key, value, timestamp_ms, headers."""
Run = tuple[RowKind, str, int, Rows]
"""Kind, name and partition of records, and these in their order."""


@dataclass(frozen=True, slots=True)
class OneTransaction:
    """Into a transaction that was begun elsewhere and is ended there."""

    transaction: OpenTransaction
    is_once: ClassVar[bool] = True

    @contextmanager
    def writer(self, log: Log) -> Iterator[Send]:
        """Give what sends a chunk to a topic; all of it is in the log when the context ends."""
        producer = log.join_transaction(self.transaction, batch_size=BATCH_BYTES)

        def send(topic: str, chunk: Chunk) -> None:
            producer.send_chunk(topic, chunk, partition=chunk.partition)

        yield send
        producer.flush()


@dataclass(frozen=True, slots=True)
class OwnTransactions:
    """Into transactions of the writer's own, one partition after another, while this claim on the application holds."""

    application: str
    token: str
    is_once: ClassVar[bool] = False

    @contextmanager
    def writer(self, log: Log) -> Iterator[Send]:
        """As `OneTransaction.writer`."""
        writer = _PartitionWriter(log, self)
        try:
            yield writer.send
            writer.finish()
        finally:
            writer.close()


@dataclass(frozen=True, slots=True)
class BothAtOnce:
    """Entries of `changelogs` into transactions of the writer's own, results into one that was begun elsewhere."""

    results: OneTransaction
    state: OwnTransactions
    changelogs: frozenset[str]
    is_once: ClassVar[bool] = True

    @contextmanager
    def writer(self, log: Log) -> Iterator[Send]:
        """As `OneTransaction.writer`."""
        with self.results.writer(log) as send_result, self.state.writer(log) as send_entry:

            def send(topic: str, chunk: Chunk) -> None:
                (send_entry if topic in self.changelogs else send_result)(topic, chunk)

            yield send


class _PartitionWriter:
    """Sends chunks of one partition at a time, in transactions of so many records. `open` while a producer is there."""

    def __init__(self, log: Log, target: OwnTransactions) -> None:
        self._log = log
        self._target = target
        self._at: TopicPartition | None = None
        self._producer: Producer | None = None
        self._records = 0
        self._longest_ms = longest_transaction_ms(log)

    def send(self, topic: str, chunk: Chunk) -> None:
        at = TopicPartition(topic, chunk.partition)
        if at != self._at or self._producer is None:
            self.finish()
            self._producer = self._open(at)
        self._producer.send_chunk(topic, chunk, partition=chunk.partition)
        self._records += len(chunk)
        if self._records >= RECORDS_PER_TRANSACTION:
            self._producer.commit_transaction()
            self._producer.begin_transaction()
            self._records = 0

    def _open(self, at: TopicPartition) -> Producer:
        application = self._target.application
        producer = take_partition(self._log, application, at, self._longest_ms)
        self._at, self._records = at, 0
        claim = read_times(self._log.admin().group_offsets(application)).claim
        if claim is None or claim.token != self._target.token:
            producer.close()
            raise InvalidInput(f"another run computes {application!r} by now: this one wrote nothing more")
        producer.begin_transaction()
        return producer

    def finish(self) -> None:
        """Commit what was sent."""
        if self._producer is not None:
            self._producer.commit_transaction()
            self.close()

    def close(self) -> None:
        """Leave what was not committed to whoever writes the partition next."""
        if self._producer is not None:
            self._producer.close()
        self._producer = None


def longest_transaction_ms(log: Log) -> int:
    """Return how long brokers let a transaction be open, as far as they say so to us; NO_TIMEOUT_MS takes a right of its own."""
    try:
        return min(int(log.admin().broker_configs().get(MAX_TIMEOUT, MAX_TIMEOUT_DEFAULT_MS)), NO_TIMEOUT_MS - 1)
    except LogflumeError:  # whoever may not ask gets what a broker allows unless it is set otherwise
        return MAX_TIMEOUT_DEFAULT_MS


@contextmanager
def transaction_of(producer: Producer) -> Iterator[None]:
    """Commit what is done in the context; nothing of it, if it raises."""
    try:
        producer.begin_transaction()
        yield
        producer.commit_transaction()
    except BaseException:
        with suppress(LogflumeError):  # fenced or unreachable: the broker aborts it itself
            producer.abort_transaction()
        raise


def take_partition(log: Log, application: str, at: TopicPartition, longest_ms: int) -> Producer:
    """Return a producer for a changelog's partition; whoever has written it before cannot any more.

    `longest_ms`: what brokers let a transaction be open.
    """
    producer = log.producer(
        transactional_id=f"{application}-backfill-{at.topic}-{at.partition}",
        transaction_timeout_ms=min(TRANSACTION_TIMEOUT_MS, longest_ms),
        batch_size=BATCH_BYTES,
    )
    try:
        producer.init_transactions()
    except BaseException:
        producer.close()
        raise
    return producer


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows go, and how.

    Attributes:
        changelogs: store -> its changelog topic.
        failpoint: called with `step` once rows are on their way to the log.
        tables: topics -> partitions of which the rows of all keys are deleted that are not written.
        left_out: topics to which nothing is written.
        until_s: when what is not written by then is given up, in seconds since 1970.
    """

    way: OneTransaction | OwnTransactions | BothAtOnce
    changelogs: Mapping[str, str]
    failpoint: Callable[[str], None]
    step: str = "writing"
    tables: Mapping[str, int] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    until_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Written:
    """What all writers say: records of results and of changelogs; `is_partial`: a task ran twice, so it has to be done again.

    `is_passing`: the problem may be gone by the next time; `is_final`: it is the application's, whichever way it is computed.
    """

    results: int
    entries: int
    is_partial: bool
    problem: str | None
    is_passing: bool = False
    is_final: bool = False

    @classmethod
    def of(cls, said: Iterable[Any]) -> Written:
        """Add up the Arrow batches or tables of all writers."""
        counts: Counter[int] = Counter()
        problems: list[tuple[int, str]] = []
        for part in said:
            columns = (part.column(name).to_pylist() for name in ("kind", "records", "problem"))
            for kind, records, problem in zip(*columns, strict=True):
                counts[kind] += records
                problems += [(kind, problem)] if problem is not None else []
        worst, problem = min(problems, default=(None, None))
        kinds = {"is_passing": worst == _PASSING_PROBLEM, "is_final": worst == _FINAL_PROBLEM}
        return cls(counts[RowKind.SINK], counts[RowKind.CHANGELOG], counts[_PARTIAL] > 0, problem, **kinds)

    def check(self) -> None:
        """Raise unless all was written: TransportError what may be gone by the next time, StreamsError what will not."""
        if self.problem is not None:
            kind = TransportError if self.is_passing else StreamsError
            raise kind(f"the results were not written: {self.problem}")
        if self.is_partial:
            raise TransportError("executors died while they wrote the results: nothing of that is visible")


_PARTIAL = -1
"""The kind of the row by which a task says that it ran before."""
_PASSING_PROBLEM, _PROBLEM, _FINAL_PROBLEM = -2, -3, -4
"""By these it tells a problem, the worst the least."""


@dataclass(frozen=True, slots=True)
class RowsToLog:
    """The function mapped over Arrow batches of ROWS (sinks and changelogs): writes them; gives WRITTEN, how many of each kind.

    All rows of a topic's partition come to one call, in order. `runs_of`: how they lie in the batches.
    """

    where: str
    target: Target
    runs_of: Callable[[Iterator[Any]], Iterator[Run]]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        if self.target.way.is_once and _is_run_again():
            yield _said({_PARTIAL: 1})
            return
        try:
            counts = self._write(batches)
        except LogflumeError as error:
            if self.target.way.is_once and error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER.name:
                yield _said({_PARTIAL: 1})
            else:
                kind = _PROBLEM if is_fatal(error) else _PASSING_PROBLEM
                yield _said({_FINAL_PROBLEM if isinstance(error, StreamsError) else kind: 1}, f"{error}{more_memory(str(error))}")
            return
        yield _said(counts)

    def _write(self, batches: Iterator[Any]) -> Mapping[int, int]:
        counts: Counter[int] = Counter()
        send: Send | None = None  # who has no rows opens no log
        with ExitStack() as stack:
            for kind, name, partition, rows in self.runs_of(batches):
                topic = self.target.changelogs[name] if kind is RowKind.CHANGELOG else name
                if topic in self.target.left_out:
                    continue
                if send is None:
                    log = stack.enter_context(connect(self.where))
                    send = stack.enter_context(self.target.way.writer(log))
                    former = FormerKeys(log, self.target.tables)
                chunk = chunk_of(topic, partition, rows)
                former.note(topic, chunk)
                if kind is not RowKind.FORMER:
                    send(topic, chunk)
                    counts[kind] += len(chunk)
                    self.target.failpoint(self.target.step)
            if send is not None:
                for chunk in former.deletions():
                    send(chunk.topic, chunk)
                    counts[RowKind.SINK] += len(chunk)
        return counts


@dataclass(slots=True)
class FormerKeys:
    """The keys of tables' topics that had a row and are not written now, by partition; read when a partition is first met.

    What others read committed is looked at, so what this transaction writes is not.
    """

    log: Log
    tables: Mapping[str, int]
    left: dict[TopicPartition, dict[bytes, int]] = field(default_factory=dict)

    def note(self, topic: str, chunk: Chunk) -> None:
        """Note what is written; a chunk without keys only that there is such a partition."""
        if topic not in self.tables:
            return
        tp = TopicPartition(topic, chunk.partition)
        if tp not in self.left:
            self.left[tp] = self._read(tp)
        left, keys = self.left[tp], chunk.keys()
        for key in keys:
            if key is not None:
                left.pop(key, None)

    def _read(self, tp: TopicPartition) -> dict[bytes, int]:
        """Return key -> time of its row in ms, of a partition as it is."""
        admin = self.log.admin()
        start = admin.start_offsets([tp])[tp]
        end = admin.end_offsets([tp], read_committed=True)[tp]
        rows: dict[bytes, int] = {}
        for chunk in read_range(self.log, OffsetRange(*tp, min(start, end), end)):
            for key, value, time_ms in zip(chunk.keys(), chunk.values(), chunk.timestamps_ms.tolist(), strict=True):
                if key is not None and value is not None:
                    rows[key] = time_ms
                elif key is not None:
                    rows.pop(key, None)
        return rows

    def deletions(self) -> Iterator[Chunk]:
        """Yield what deletes the rows that are left."""
        for tp, rows in self.left.items():
            keys = list(rows)
            for at in range(0, len(keys), BATCH_RECORDS):
                part = keys[at : at + BATCH_RECORDS]
                times = [rows[key] for key in part]
                yield Chunk.from_columns(tp.topic, part, [None] * len(part), times, partition=tp.partition)


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


def plain_runs(batches: Iterable[Any]) -> Iterator[Run]:
    """Yield the rows of each kind, name and partition of each batch, in their order."""
    for batch in batches:
        if not batch.num_rows:
            continue
        encoded = batch.column("name").dictionary_encode()
        names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        kinds, partitions = batch.column("kind").to_numpy(), batch.column("partition").to_numpy()
        order = np.lexsort((partitions, codes, kinds))
        sorted_by = np.stack([column[order] for column in (kinds, codes, partitions)])
        edges = [0, *(np.flatnonzero((sorted_by[:, 1:] != sorted_by[:, :-1]).any(axis=0)) + 1).tolist(), len(order)]
        rows = batch if len(edges) == 2 else batch.take(order)
        for first, stop in pairwise(edges):
            kind, name, partition = RowKind(sorted_by[0, first]), names[sorted_by[1, first]], int(sorted_by[2, first])
            yield kind, name, partition, rows.slice(first, stop - first)


def chunk_of(topic: str, partition: int, rows: Rows) -> Chunk:
    """Return records as a chunk for a partition."""
    blobs = rows.column("headers")
    if blobs.null_count == len(blobs):
        return Chunk.from_arrow(topic, rows, partition=partition)
    headers = [unpack_headers(blob) for blob in blobs.to_pylist()]
    keys, values, times = (rows.column(name).to_pylist() for name in ("key", "value", "timestamp_ms"))
    return Chunk.from_columns(topic, keys, values, times, partition=partition, headers=headers)
