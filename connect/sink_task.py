"""Runs a sink: polls a consumer group, decodes, puts, flushes, then commits what the target says is safe.

Offsets are committed to the group `connect-<name>` only after the flush, in one transaction with the dead letters that lie
below them, so dead letters come exactly once. Where the target keeps offsets itself, records below them are never put again:
exactly-once. A task is a static member of its group (KIP-345): started again after a kill it has its partitions back at once,
and an older task of the same name is fenced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from logflume.log import (
    Chunk,
    Consumer,
    InvalidInput,
    KafkaError,
    Log,
    LogflumeError,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)

from .api import SinkBatch, SinkConnector, SinkContext
from .converters import ChunkDecoder
from .dead_letters import DeadLetter, from_record
from .errors import TargetRefused, TaskFenced
from .load import ConnectorConfig
from .meter import Meter
from .pause import PauseGate
from .sink_start import check_values
from .transaction import TRANSACTION_TIMEOUT_MS, is_fenced, transaction

_POLL_S = 0.25
_COMPARED_RECORDS = 100
_SESSION_TIMEOUT_MS = 10_000


class SinkTask:
    """One task of a sink. `run` returns True when the end was reached (`until_end`), False when it was told to stop.

    Invariants: an offset is committed to the group only when everything below it is safe in the target or in the dead-letter
    topic; `_positions` are behind everything that was read.
    """

    def __init__(
        self,
        log: Log,
        connector: ConnectorConfig,
        task: int,
        *,
        meter: Meter,
        clock_s: Callable[[], float],
        until_end: Mapping[TopicPartition, int] | None,
    ) -> None:
        """`until_end`: complete when these offsets are committed; None: run until told to stop."""
        plugin = connector.plugin
        assert isinstance(plugin, SinkConnector)
        self._log, self._connector, self._task = log, connector, task
        self._meter, self._clock_s, self._until_end = meter, clock_s, until_end
        self._group = f"connect-{connector.name}"
        self._decoder = ChunkDecoder(connector.config, where=connector.where)
        context = SinkContext(connector=connector.name, task=task, schema=self._decoder.schema, clock_s=clock_s)
        self._target = plugin.start(connector.config, context)
        self._positions: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._in_target: dict[TopicPartition, int] = {}
        self._letters: dict[TopicPartition, list[tuple[int, DeadLetter]]] = {}
        self._unflushed: dict[TopicPartition, list[tuple[int, int]]] = {}
        self._failure: BaseException | None = None
        self._is_compared = connector.config.text("value.converter") != "json"

    def run(self, stop: threading.Event, pause: PauseGate) -> bool:
        """Work until the end or until `stop`; on the way out everything that was put is flushed and committed.

        Raises:
            InvalidInput: a record cannot be decoded, with errors.tolerance = none; names topic, partition and offset.
            TargetRefused: the target cannot take the records.
        """
        consumer = self._log.consumer(
            group_id=self._group,
            group_instance_id=f"{self._group}-{self._task}",
            read_committed=True,
            session_timeout_ms=_SESSION_TIMEOUT_MS,
            client_id=f"{self._group}-{self._task}",
        )
        producer = self._dead_letter_producer()
        try:
            consumer.subscribe(
                self._connector.topics,
                on_assigned=lambda partitions: self._take_over(consumer, partitions, pause),
                on_revoked=lambda partitions: self._hand_over(consumer, producer, partitions),
            )
            is_complete = self._loop(consumer, producer, stop, pause)
            self._flush(consumer, producer, is_final=True)
            return is_complete
        except KafkaError as error:
            self._failure = error
            if is_fenced(error):
                raise TaskFenced(
                    f"another worker runs task {self._task} of connector {self._connector.name!r} and has its partitions; "
                    "this one has stopped, stop one of the two"
                ) from error
            raise
        except BaseException as error:
            self._failure = error
            raise
        finally:
            consumer.close()
            self._target.close()
            if producer is not None:
                producer.close()

    def _loop(self, consumer: Consumer, producer: Producer | None, stop: threading.Event, pause: PauseGate) -> bool:
        interval_s = self._connector.config.integer("offset.flush.interval.ms") / 1000
        next_flush_s = self._clock_s() + interval_s
        while not stop.is_set():
            if pause.is_closed:
                self._flush(consumer, producer, is_final=True)
                self._wait_paused(consumer, stop, pause)
            for chunk in consumer.poll(timeout_s=min(_POLL_S, interval_s)):
                self._put(chunk)
            if self._failure is not None:
                raise self._failure
            self._show_progress(consumer)
            is_end = self._is_at_end(consumer)
            if is_end or self._clock_s() >= next_flush_s:
                self._flush(consumer, producer, is_final=is_end)
                next_flush_s = self._clock_s() + interval_s
            if is_end and self._is_all_committed():
                return True
        return False

    def _wait_paused(self, consumer: Consumer, stop: threading.Event, pause: PauseGate) -> None:
        """Stay in the group without reading."""
        consumer.pause(consumer.assignment())
        while pause.is_closed and not stop.is_set():
            for chunk in consumer.poll(timeout_s=_POLL_S):
                self._put(chunk)
        consumer.resume(consumer.assignment())

    def _take_over(self, consumer: Consumer, partitions: Sequence[TopicPartition], pause: PauseGate) -> None:
        """Begin where the target says, or where the group does when dead letters below that may be missing."""
        if pause.is_closed:
            consumer.pause(partitions)
        try:
            in_target = dict(self._target.open(partitions))
            self._check_within_log(in_target)
            committed = consumer.committed(partitions)
            for partition in partitions:
                known = committed.get(partition)
                target = in_target.get(partition)
                if known is not None:
                    self._committed[partition] = known.offset
                if target is None:
                    continue
                self._in_target[partition] = target
                if self._connector.dead_letter_topic is None:
                    consumer.seek(partition, target)
                    self._positions[partition] = target
                elif known is not None:
                    consumer.seek(partition, min(known.offset, target))
        except LogflumeError as error:
            self._failure = error

    def _check_within_log(self, in_target: Mapping[TopicPartition, int]) -> None:
        ends = self._log.admin().end_offsets(in_target)
        for partition, offset in in_target.items():
            if offset > ends[partition]:
                raise TargetRefused(
                    f"the target holds {partition.topic}-{partition.partition} up to offset {offset}, but the topic "
                    f"ends at {ends[partition]}: "
                    "it was deleted and made again; empty the target, or give the connector another name and target"
                )

    def _hand_over(self, consumer: Consumer, producer: Producer | None, partitions: Sequence[TopicPartition]) -> None:
        try:
            if self._failure is None:
                self._flush(consumer, producer, is_final=True)
        except LogflumeError as error:
            self._failure = error
        self._target.release(partitions)
        for partition in partitions:
            for kept in (self._positions, self._committed, self._in_target, self._letters, self._unflushed):
                kept.pop(partition, None)

    def _put(self, chunk: Chunk) -> None:
        if not self._is_compared:
            self._is_compared = check_values(self._connector, chunk.slice(0, _COMPARED_RECORDS).values())
        batch, failed = self._decoder.decode(chunk)
        partition = batch.partition
        self._keep(chunk, {int(chunk.offsets[each.index]): (each.stage, each.error) for each in failed})
        in_target = self._in_target.get(partition, 0)
        if chunk.next_offset > in_target:
            batch = _behind(batch, in_target)
            refused = self._target.put(batch)
            self._keep(chunk, {each.offset: ("TASK_PUT", TargetRefused(each.reason)) for each in refused})
        self._positions[partition] = chunk.next_offset
        self._unflushed.setdefault(partition, []).append((chunk.next_offset, len(batch) if chunk.next_offset > in_target else 0))

    def _keep(self, chunk: Chunk, failed: Mapping[int, tuple[str, Exception]]) -> None:
        """Hold dead letters (offset -> stage and error) back until their offsets are committed with them."""
        if not failed:
            return
        for record in chunk.records():
            if record.offset not in failed:
                continue
            stage, error = failed[record.offset]
            if self._connector.dead_letter_topic is None:
                raise InvalidInput(
                    f"{record.topic}-{record.partition}, offset {record.offset}, {stage}: {error}; "
                    'set errors.tolerance = "all" to keep such records in the dead-letter topic and go on'
                )
            letter = from_record(record, stage=stage, error=error, connector=self._connector.name, task=self._task)
            self._letters.setdefault(TopicPartition(record.topic, record.partition), []).append((record.offset, letter))

    def _flush(self, consumer: Consumer, producer: Producer | None, *, is_final: bool) -> None:
        """Flush the target, then commit what is safe with the dead letters below it."""
        safe = dict(self._target.flush(is_final=is_final))
        for partition, position in self._positions.items():
            if position <= self._in_target.get(partition, -1):
                safe.setdefault(partition, position)
        due = {partition: offset for partition, offset in safe.items() if offset > self._committed.get(partition, -1)}
        if not due:
            return
        letters = self._letters_below(due)
        offsets = {partition: OffsetAndMetadata(offset) for partition, offset in due.items()}
        if producer is None:
            consumer.commit(offsets)
        else:
            self._commit_with_letters(consumer, producer, offsets, letters)
        self._committed.update(due)
        for partition, offset in due.items():
            self._letters[partition] = [pair for pair in self._letters.get(partition, ()) if pair[0] >= offset]
            flushed = [count for behind, count in self._unflushed.get(partition, ()) if behind <= offset]
            self._unflushed[partition] = [pair for pair in self._unflushed.get(partition, ()) if pair[0] > offset]
            self._meter.add(sum(flushed), now_s=self._clock_s())
        self._meter.add(0, broken=len(letters), now_s=self._clock_s())

    def _letters_below(self, offsets: Mapping[TopicPartition, int]) -> list[DeadLetter]:
        return [letter for partition, offset in offsets.items() for at, letter in self._letters.get(partition, ()) if at < offset]

    def _commit_with_letters(
        self,
        consumer: Consumer,
        producer: Producer,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        letters: Sequence[DeadLetter],
    ) -> None:
        topic = self._connector.dead_letter_topic
        assert topic is not None
        with transaction(producer, clock_s=self._clock_s):
            for letter in letters:
                producer.send(topic, letter.value, key=letter.key, timestamp_ms=letter.timestamp_ms, headers=letter.headers)
            producer.send_offsets(offsets, consumer.group_metadata())

    def _dead_letter_producer(self) -> Producer | None:
        if self._connector.dead_letter_topic is None:
            return None
        self._log.admin().ensure_topic(self._connector.dead_letter_topic)
        producer = self._log.producer(
            transactional_id=f"{self._group}-{self._task}", transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        producer.init_transactions()
        return producer

    def _is_at_end(self, consumer: Consumer) -> bool:
        """Whether every partition of this task is at the end that was fixed; False while it waits for partitions."""
        if self._until_end is None:
            return False
        assigned = consumer.assignment()
        return all(consumer.position(partition) >= self._until_end.get(partition, 0) for partition in assigned)

    def _is_all_committed(self) -> bool:
        """Whether the whole group, this task or another, has committed the end."""
        assert self._until_end is not None
        missing = {partition: end for partition, end in self._until_end.items() if self._committed.get(partition, -1) < end}
        if not missing:
            return True
        committed = self._log.admin().group_offsets(self._group)
        return all(partition in committed and committed[partition].offset >= end for partition, end in missing.items())

    def _show_progress(self, consumer: Consumer) -> None:
        lags = [consumer.lag(partition) for partition in consumer.assignment()]
        self._meter.done = sum(self._positions.values())
        self._meter.total = self._meter.done + sum(lag for lag in lags if lag is not None)


def _behind(batch: SinkBatch, offset: int) -> SinkBatch:
    """Return the part of a batch at or behind an offset."""
    first = int(np.searchsorted(batch.offsets, offset))
    if first == 0:
        return batch
    return SinkBatch(
        partition=batch.partition,
        schema=batch.schema,
        offsets=batch.offsets[first:],
        timestamps_ms=batch.timestamps_ms[first:],
        keys=batch.keys[first:],
        values=batch.values[first:],
        next_offset=batch.next_offset,
    )
