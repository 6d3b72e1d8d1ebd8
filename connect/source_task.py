"""Runs the loop of a source: each batch, its dead letters and its offset are one transaction, so that a row comes exactly once.

A task's transactional id is `connect-<name>-<task>`: starting it fences an older task of the same name, wherever that runs,
and aborts what it left open; only then are the kept offsets read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from logflume.log import Chunk, InvalidInput, KafkaError, Log, Producer

from .api import Broken, Idle, RowSchema, SourceBatch, SourceConnector, SourceContext
from .converters import Encode, frame_splitter, make_encoder
from .dead_letters import DeadLetter, from_broken
from .errors import BrokenRow, TaskFenced
from .load import ConnectorConfig
from .meter import Meter
from .offsets import OffsetStore
from .pause import PauseGate
from .transaction import TRANSACTION_TIMEOUT_MS, is_fenced, transaction


class SourceTask:
    """One task of a source. `run` returns True when a bounded source came to its end, False when it was told to stop."""

    def __init__(
        self, log: Log, connector: ConnectorConfig, task: int, tasks: int, *, meter: Meter, clock_s: Callable[[], float]
    ) -> None:
        self._log, self._connector, self._task, self._tasks = log, connector, task, tasks
        self._meter, self._clock_s = meter, clock_s
        self._topic = connector.config.text("topic")
        self._encoders: tuple[RowSchema, Encode, Encode] | None = None
        self._splitter = frame_splitter(connector.config)

    def run(self, stop: threading.Event, pause: PauseGate) -> bool:
        """Read until the end or until `stop`; what was read but not committed is read again next time.

        Raises:
            BrokenRow: with errors.tolerance = none.
        """
        plugin = self._connector.plugin
        assert isinstance(plugin, SourceConnector)
        make_topics(self._log, self._connector)
        producer = self._log.producer(
            transactional_id=f"connect-{self._connector.name}-{self._task}", transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        try:
            producer.init_transactions()
            offsets = OffsetStore(self._log, self._connector.name)
            offsets.read(clock_s=self._clock_s)
            context = SourceContext(task=self._task, tasks=self._tasks, offset_of=offsets.get, clock_s=self._clock_s)
            loop = plugin.read(self._connector.config, context)
            try:
                pause.wait(stop)
                for item in () if stop.is_set() else loop:
                    if not isinstance(item, Idle):
                        self._write(producer, offsets, item)
                    pause.wait(stop)
                    if stop.wait(item.wait_s) if isinstance(item, Idle) else stop.is_set():
                        break
            finally:
                getattr(loop, "close", _nothing)()
            return not stop.is_set()
        except KafkaError as error:
            if is_fenced(error):
                raise TaskFenced(
                    f"another worker runs task {self._task} of connector {self._connector.name!r} and goes on from its offset; "
                    "this one has stopped, stop one of the two"
                ) from error
            raise
        finally:
            producer.close()

    def _write(self, producer: Producer, offsets: OffsetStore, batch: SourceBatch) -> None:
        chunk, broken = self._encode(batch)
        letters = self._dead_letters(broken)
        with transaction(producer, clock_s=self._clock_s):
            if chunk is not None:
                producer.send_chunk(self._topic, chunk)
            for letter in letters:
                assert self._connector.dead_letter_topic is not None
                producer.send(
                    self._connector.dead_letter_topic,
                    letter.value,
                    key=letter.key,
                    timestamp_ms=letter.timestamp_ms,
                    headers=letter.headers,
                )
            offsets.send(producer, batch.partition, batch.offset)
        offsets.keep(batch.partition, batch.offset)
        self._meter.done, self._meter.total = batch.done, batch.total
        self._meter.add(0 if chunk is None else len(chunk), broken=len(letters), now_s=self._clock_s())

    def _encode(self, batch: SourceBatch) -> tuple[Chunk | None, Sequence[Broken]]:
        """Return the records of a batch, and its broken rows with those that cannot be written."""
        encode_key, encode_value = self._encoders_for(batch.schema)
        broken = list(batch.broken)
        try:
            keys = [encode_key(row) for row in batch.keys] if batch.schema.key else [None] * len(batch.keys)
            values = [encode_value(row) for row in batch.values]
            times = batch.timestamps_ms
        except InvalidInput:
            keys, values, kept = list[bytes | None](), list[bytes | None](), list[int]()
            for index, (key_row, value_row) in enumerate(zip(batch.keys, batch.values, strict=True)):
                try:
                    key, value = encode_key(key_row) if batch.schema.key else None, encode_value(value_row)
                except InvalidInput as error:
                    line = batch.positions[index] if batch.positions else 0
                    broken.append(Broken(repr(value_row).encode(), _name_of(batch), line, None, str(error)))
                    continue
                keys.append(key)
                values.append(value)
                kept.append(index)
            times = batch.timestamps_ms[np.array(kept, np.int64)]
        if not values:
            return None, broken
        headers: list[tuple[tuple[str, bytes | None], ...]] | None = None
        if self._splitter is not None:
            parts = [(None, ()) if value is None else self._splitter.split(value) for value in values]
            values, headers = [payload for payload, _ in parts], [(header,) if header else () for _, header in parts]
        return Chunk.from_columns(self._topic, keys, values, times, headers=headers), broken

    def _encoders_for(self, schema: RowSchema) -> tuple[Encode, Encode]:
        if self._encoders is None or self._encoders[0] != schema:
            config, where = self._connector.config, self._connector.where
            key = make_encoder(config, "key", schema.key, where=where) if schema.key else _no_key
            self._encoders = (schema, key, make_encoder(config, "value", schema.value, where=where))
        return self._encoders[1:]

    def _dead_letters(self, broken: Sequence[Broken]) -> list[DeadLetter]:
        if broken and self._connector.dead_letter_topic is None:
            first = broken[0]
            raise BrokenRow(first.file, first.line, first.column, first.reason)
        return [from_broken(row, connector=self._connector.name, task=self._task) for row in broken]


def make_topics(log: Log, connector: ConnectorConfig) -> None:
    """Make the topics a source writes to, where they are missing."""
    config, admin = connector.config, log.admin()
    partitions = config.integer("topic.partitions")
    configs = {"retention.ms": "-1", **config.table("topic.config.*")}
    admin.ensure_topic(config.text("topic"), partitions=partitions, configs=configs)
    if connector.dead_letter_topic:
        admin.ensure_topic(connector.dead_letter_topic)


def _name_of(batch: SourceBatch) -> str:
    return next(iter(batch.partition.values()), "")


def _no_key(row: object) -> None:
    return None


def _nothing() -> None:
    return None
