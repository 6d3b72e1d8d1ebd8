"""The registry's log: the topic `_schemas` (one partition, compacted), read by every instance, written by one.

Reading: a thread follows the topic and hands over entries with the offset behind them; what an open or aborted transaction holds
is never seen. Writing: each change is one transaction of one transactional id, so that whoever begins to write fences whoever
wrote before; a change is in the log with all of its records or with none.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from logflume.log.client.errors import ClientClosed
from logflume.log.errors import DecodeError, InvalidInput, LogflumeError
from logflume.log.interfaces import Log, Producer
from logflume.log.records import TopicPartition

from .records import Entry, decode, encode_key, encode_value

DEFAULT_TOPIC = "_schemas"
TRANSACTION_TIMEOUT_MS = 20_000
READ_PAUSE_S = 0.5
_log = logging.getLogger("logflume.registry")


class Taker(Protocol):
    """Takes what was read, in order; called in the reader's thread."""

    def __call__(self, entries: Sequence[Entry], next_offset: int, unreadable: int) -> None: ...


def ensure_topic(log: Log, topic: str) -> TopicPartition:
    """Make the topic if it is missing; refuse one that would lose schemas or has more than one partition.

    Raises:
        InvalidInput: the topic is there and is not fit.
    """
    found = log.admin().ensure_topic(topic, partitions=1, configs={"cleanup.policy": "compact"})
    if found.partitions != 1:
        raise InvalidInput(f"expected topic {topic} to have 1 partition, found {found.partitions}; choose another --topic")
    policy = log.admin().topic_configs(topic).get("cleanup.policy", "")
    if policy != "compact":
        raise InvalidInput(
            f"expected topic {topic} to have cleanup.policy=compact, found {policy!r}, which would lose schemas; "
            f"`logflume topic alter {topic} --config cleanup.policy=compact` sets it"
        )
    return TopicPartition(topic, 0)


class Reader:
    """Follows the topic in a thread of its own until `close`."""

    def __init__(self, log: Log, partition: TopicPartition, take: Taker) -> None:
        self._log = log
        self._partition = partition
        self._take = take
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="registry-reader", daemon=True)
        self._offset = 0

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except ClientClosed:
                return
            except LogflumeError as error:
                _log.warning("cannot read %s: %s; trying again", self._partition.topic, error)
                self._stopping.wait(READ_PAUSE_S)

    def _follow(self) -> None:
        consumer = self._log.consumer(read_committed=True, fetch_max_wait_ms=100)
        try:
            consumer.assign([self._partition])
            if self._offset:
                consumer.seek(self._partition, self._offset)
            while not self._stopping.is_set():
                chunks = consumer.poll(timeout_s=READ_PAUSE_S)
                entries, unreadable = [], 0
                for chunk in chunks:
                    for row, (key, value) in enumerate(zip(chunk.keys(), chunk.values(), strict=True)):
                        try:
                            entries.append(decode(key or b"", value))
                        except DecodeError as error:
                            unreadable += 1
                            _log.warning("%s, offset %s: %s", self._partition.topic, chunk.offsets[row], error)
                position = consumer.position(self._partition)
                if entries or unreadable or position != self._offset:
                    self._offset = position
                    self._take(entries, position, unreadable)
        finally:
            with contextlib.suppress(LogflumeError):
                consumer.close()


class Writer:
    """Writes changes, once `begin` has fenced every other writer. One thread at a time."""

    def __init__(self, log: Log, partition: TopicPartition, *, transactional_id: str) -> None:
        self._log = log
        self._partition = partition
        self._transactional_id = transactional_id
        self._producer: Producer | None = None

    def begin(self) -> int:
        """Fence who wrote before and end what it left open; return the offset up to which there is something to read."""
        self.end()
        producer = self._log.producer(
            transactional_id=self._transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, linger_ms=0
        )
        try:
            producer.init_transactions()
        except LogflumeError:
            producer.close()
            raise
        self._producer = producer
        return self._log.admin().end_offsets([self._partition], read_committed=True)[self._partition]

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    def write(self, entries: Sequence[Entry]) -> int:
        """Write a change; return the offset of its last record once it is on disk.

        Raises:
            ProducerFenced: another writer has begun. Nothing of the change is in the log.
            LogflumeError: the log could not be reached; the change may be in the log or not, and `begin` has to be called again.
        """
        producer = self._producer
        if producer is None:
            raise ClientClosed("this registry is not the writer")
        try:
            producer.begin_transaction()
            sent = [
                producer.send(self._partition.topic, encode_value(each.value), key=encode_key(each.key), partition=0)
                for each in entries
            ]
            producer.commit_transaction()
            return max(each.result(timeout=0).offset for each in sent)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Stop writing; an open transaction is aborted, by `begin` of whoever comes next at the latest."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(LogflumeError):
                producer.close()


class Election:
    """Decides who writes: the member of a consumer group that is assigned the topic's only partition.

    Members are static and named by the address they are reached at, so that whoever is not the writer can read in the group who
    is, and a registry that is killed and comes back at once has its place again. `on_change` is called in the election's thread
    with True to begin and False to stop; a stale True is harmless, for the writer is fenced.
    """

    def __init__(
        self, log: Log, partition: TopicPartition, *, group_id: str, address: str, on_change: Callable[[bool], None]
    ) -> None:
        self._log = log
        self._partition = partition
        self._group_id = group_id
        self._address = address
        self._on_change = on_change
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="registry-election", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Leave the group, so that another instance takes over at once."""
        self._stopping.set()
        self._thread.join(10)

    def writer(self) -> str | None:
        """Return the address of the writer, None while there is none."""
        group = self._log.admin().describe_group(self._group_id)
        return next((each.instance_id for each in group.members if self._partition in each.assignment and each.instance_id), None)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._take_part()
            except ClientClosed:
                return
            except LogflumeError as error:
                _log.warning("election of the writer: %s; trying again", error)
                self._on_change(False)
                self._stopping.wait(READ_PAUSE_S)

    def _take_part(self) -> None:
        consumer = self._log.consumer(
            group_id=self._group_id,
            group_instance_id=self._address,
            session_timeout_ms=6_000,
            max_poll_interval_ms=60_000,
            offset_reset="latest",
            client_id="logflume-registry",
        )
        try:
            consumer.subscribe(
                [self._partition.topic],
                on_assigned=lambda got: self._assigned(got, consumer.pause),
                on_revoked=lambda lost: self._on_change(False) if self._partition in lost else None,
            )
            while not self._stopping.is_set():
                consumer.poll(timeout_s=READ_PAUSE_S)
        finally:
            self._on_change(False)
            if self._stopping.is_set():
                with contextlib.suppress(LogflumeError):
                    self._log.admin().remove_group_members(self._group_id, [self._address])
            with contextlib.suppress(LogflumeError):
                consumer.close()

    def _assigned(self, got: Sequence[TopicPartition], pause: Callable[[Sequence[TopicPartition]], None]) -> None:
        if self._partition in got:
            pause([self._partition])
            self._on_change(True)
