"""Streaming writes exactly once: each micro-batch is one transaction, which also says that this batch is written.

    writer = frame.writeStream.foreachBatch(exactly_once("host:9092", "copies", name="copier"))

The driver begins a transaction and adds (batch + 1) as the offset of the group `name` on the topic's partition 0; executors join
it and write their rows; the driver commits. So a batch that Spark runs again, after whatever killed it, finds itself written and
does nothing, and a reader sees a batch wholly or not at all. The name belongs to one query and its checkpoint, whose id is kept
with the offset: with a new checkpoint batches begin at 0 again, and a name that another one has written with is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logflume.log import (
    Chunk,
    GroupMetadata,
    InvalidInput,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
    connect,
)

from .ranges import reachable
from .rows import ROWS, RowKind, target_partitions
from .source_options import check_columns
from .writing import WRITTEN, OneTransaction, RowsToLog, Target, Written, longest_transaction_ms, plain_runs, transaction_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID = "sql.streaming.queryId"
"""The property in which Spark says which query a micro-batch is of: the same for as long as the checkpoint is."""


def nothing(_: str) -> None:
    """Is called at each write; a function of a module, because it is sent to executors."""


@dataclass(frozen=True, slots=True)
class Addressed:
    """The function mapped over Arrow batches of ROWS: gives rows without a partition that of their key."""

    topic: str
    partitions: int

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            given = batch.column("partition").to_pylist()
            if None in given:
                records = Chunk.from_arrow(self.topic, batch.select(["key", "value"]))
                by_key = target_partitions(records, self.partitions).tolist()
                given = [key if at is None else at for at, key in zip(given, by_key, strict=True)]
            wrong = next((at for at in given if not 0 <= at < self.partitions), None)
            if wrong is not None:
                raise InvalidInput(f"{self.topic} has partitions 0 to {self.partitions - 1}; a row says {wrong}")
            place = batch.schema.get_field_index("partition")
            yield batch.set_column(place, batch.schema.field(place), pa.array(given, pa.int32()))


@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """What `foreachBatch` calls."""

    where: str
    topic: str
    name: str

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write a micro-batch unless that is done.

        Raises:
            InvalidInput: no column `value`, one that is not written or of another type, or the name is another query's.
            LogflumeError: what a writer said; nothing of the batch is visible.
        """
        check_columns(dict(frame.dtypes))
        query_id = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or ""
        with connect(self.where) as log:
            place = TopicPartition(self.topic, 0)
            partitions = log.admin().describe_topics([self.topic])[self.topic].partitions
            longest_ms = longest_transaction_ms(log)  # what the frame comes from is computed inside of the transaction
            with log.producer(transactional_id=f"{self.name}-batches", transaction_timeout_ms=longest_ms) as producer:
                producer.init_transactions()
                found = log.admin().group_offsets(self.name, is_stable=True).get(place)
                if found is not None:
                    self._check_same(found, batch_id, query_id)
                    if found.offset > batch_id:
                        return
                rows = self._rows(frame, partitions)
                with transaction_of(producer):
                    said = OffsetAndMetadata(batch_id + 1, metadata=query_id)
                    producer.send_offsets({place: said}, GroupMetadata(self.name, -1, ""))
                    write(rows, producer, reachable(log))

    def _check_same(self, written: OffsetAndMetadata, batch_id: int, query_id: str) -> None:
        if written.metadata != query_id or written.offset > batch_id + 1:
            raise InvalidInput(
                f"{self.name!r} has written {written.offset} batches to {self.topic}, this query is at its batch {batch_id}: "
                "another query or checkpoint; give exactly_once a name of its own"
            )

    def _rows(self, frame: DataFrame, partitions: int) -> DataFrame:
        """Return the frame as ROWS, those of a partition together and in order."""
        given = {
            "kind": str(int(RowKind.SINK)),
            "name": f"'{self.topic}'",
            "partition": "CAST(partition AS INT)" if "partition" in frame.columns else "CAST(NULL AS INT)",
            "time_ms": "CAST(NULL AS BIGINT)",
            "task": "0",
            "seq": "monotonically_increasing_id()",
            "key": "CAST(key AS BINARY)" if "key" in frame.columns else "CAST(NULL AS BINARY)",
            "value": "CAST(value AS BINARY)",
            "timestamp_ms": "timestamp_ms" if "timestamp_ms" in frame.columns else "unix_millis(current_timestamp())",
            "headers": "CAST(NULL AS BINARY)",
        }
        rows = frame.selectExpr(*(f"{expression} AS {name}" for name, expression in given.items()))
        addressed = rows.mapInArrow(Addressed(self.topic, partitions), ROWS)
        cores = frame.sparkSession.sparkContext.defaultParallelism
        return addressed.repartition(min(cores, partitions), "partition").sortWithinPartitions("partition", "seq")


def write(rows: DataFrame, producer: Producer, where: str) -> None:
    """Have executors write rows in the transaction of a producer. Raises what they say."""
    target = Target(OneTransaction(producer.share_transaction()), {}, nothing)
    Written.of([rows.mapInArrow(RowsToLog(where, target, plain_runs), WRITTEN).toArrow()]).check()


def exactly_once(where: str, topic: str, *, name: str) -> Callable[[DataFrame, int], None]:
    """Return what `writeStream.foreachBatch` takes to write a stream exactly once.

    Of columns value (bytes or text) and, if present, key, partition and timestamp_ms.

    Args:
        where: HOST:PORT of a broker, or a data directory that a running process holds.
        name: of this query: its group and transactions in the log.
    """
    return ExactlyOnce(where, topic, name)
